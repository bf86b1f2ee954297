"""Tasks of Django. Nothing in them knows of tickr, except the report, which says how far it is."""

import csv
import time

from django.conf import settings
from django.core.mail import send_mail
from django.db.models import Count, Sum
from django_tasks import task

from shop.models import Order
from tickr.django import current_context


@task(priority=10)
def mail_confirmation(order_id):
    """Send the mail about an order."""
    order = Order.objects.get(pk=order_id)
    text = f"Thank you for your order {order.pk}: {order.item}, {order.price}."
    send_mail(f"Your order {order.pk}", text, None, [order.email])
    return {"to": order.email}


@task(queue_name="reports")
def sales_report():
    """Write the sales by item as CSV. Return the name of the file."""
    context = current_context()
    folder = settings.MEDIA_ROOT / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"sales-{context.job_id}.csv"
    rows = list(Order.objects.values("item").annotate(orders=Count("id"), cents=Sum("cents")).order_by("item"))
    with open(folder / name, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "orders", "cents"])
        for place, row in enumerate(rows, 1):
            context.check()  # ends the task here if the job was cancelled
            writer.writerow([row["item"], row["orders"], row["cents"]])
            context.progress(100 * place / len(rows), row["item"])
            time.sleep(0.05)  # so that the progress can be seen
    return {"file": f"reports/{name}", "items": len(rows)}
