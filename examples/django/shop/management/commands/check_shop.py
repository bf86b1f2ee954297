"""The command `check_shop`: buy something at the page, and wait until its jobs have ended."""

import re
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from shop.jobs import resize
from shop.models import Order, Report


class Command(BaseCommand):
    """Buy, ask for a report, and check what the jobs did."""

    help = "Buy something at the running page, and check what its jobs did."

    def add_arguments(self, parser):
        """Add the address of the page."""
        parser.add_argument("url")

    def handle(self, *args, url, **options):
        """Run the check."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        page = browser.open(url, timeout=10).read().decode()
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page).group(1)
        for action, fields in (("buy", {"email": "ada@example.com", "item": "tea", "cents": 450}), ("report", {})):
            form = urllib.parse.urlencode({"csrfmiddlewaretoken": token, **fields}).encode()
            browser.open(url + action, form, timeout=10).read()
        order, report = Order.objects.latest("pk"), Report.objects.latest("pk")
        results = {}
        for name, job in (("mail", order.mail_job), ("picture", order.picture_job), ("report", report.job)):
            results[name] = resize.app.client.wait(job, 60).value()
            self.stdout.write(f"{name}: {results[name]}")
        order.refresh_from_db()
        mails = "".join(path.read_text() for path in Path(settings.EMAIL_FILE_PATH).iterdir())
        report_file = settings.MEDIA_ROOT / results["report"]["file"]
        done = {
            "the mail": f"Your order {order.pk}" in mails,
            "the picture": (settings.MEDIA_ROOT / order.small_picture).is_file()
            and results["picture"]["size"] == [160, 120],
            "the report": "tea" in report_file.read_text(),
            "the page": order.small_picture in browser.open(url, timeout=10).read().decode(),
        }
        for what, good in done.items():
            if not good:
                raise CommandError(f"{what} is wrong")
        self.stdout.write("The shop works.")
