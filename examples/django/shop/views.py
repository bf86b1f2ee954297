"""The page of the shop."""

from django.conf import settings
from django.db import transaction
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST
from PIL import Image, ImageDraw

import tickr
from shop.jobs import Resize, resize
from shop.models import Order, Report
from shop.tasks import mail_confirmation, sales_report


def state_of(job_id):
    """Return the job with this id, as the page shows it."""
    if not job_id:
        return None
    try:
        return resize.app.client.get(job_id).data
    except tickr.TickrError as error:
        return {"id": job_id, "state": "unknown", "last_error": str(error)}


@require_GET
def index(request):
    """Show the latest orders and reports with the states of their jobs."""
    orders = [
        {"order": order, "mail": state_of(order.mail_job), "picture": state_of(order.picture_job)}
        for order in Order.objects.order_by("-pk")[:10]
    ]
    reports = [state_of(report.job) for report in Report.objects.order_by("-pk")[:5]]
    return render(request, "index.html", {"orders": orders, "reports": reports})


@require_POST
def buy(request):
    """Keep an order, and start its jobs after the COMMIT."""
    with transaction.atomic():
        order = Order.objects.create(
            email=request.POST.get("email") or "ada@example.com",
            item=request.POST.get("item") or "tea",
            cents=request.POST.get("cents") or 450,
        )
        order.picture = keep_picture(order, request.FILES.get("picture"))
        order.save()
        # The rows of the shop are in SQLite. With MySQL, the outbox puts the jobs into this very transaction: see
        # OPTIONS of TASKS.
        transaction.on_commit(lambda: start_jobs(order))
    return redirect("index")


def keep_picture(order, upload):
    """Write the picture of an order, or draw one, and return its path."""
    folder = settings.MEDIA_ROOT / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{order.pk}"
    if upload is not None:
        with open(path, "wb") as file:
            for chunk in upload.chunks():
                file.write(chunk)
    else:
        picture = Image.new("RGB", (800, 600), "seagreen")
        ImageDraw.Draw(picture).ellipse((200, 100, 600, 500), fill="gold")
        picture.save(path, "PNG")
    return f"pictures/{order.pk}"


def start_jobs(order):
    """Start the jobs of an order. The order has their ids, so that the page can show them."""
    order.mail_job = mail_confirmation.enqueue(order.pk).id
    # A request that is repeated for this order makes no second job.
    order.picture_job = resize.enqueue(Resize(order.pk, order.picture), unique_key=f"order-{order.pk}").id
    order.save(update_fields=["mail_job", "picture_job"])


@require_POST
def report(request):
    """Start a report."""
    Report.objects.create(job=sales_report.enqueue().id)
    return redirect("index")
