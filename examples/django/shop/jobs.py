"""A kind of tickr with a typed payload. Programs in other languages may enqueue it as well, by its schema."""

from dataclasses import dataclass

import tickr

app = tickr.App()


@dataclass
class Resize:
    """The payload of `shop.resize`."""

    order: int
    path: str
    width: int = 160


@app.kind("shop.resize", queue="shop.pictures", max_attempts=3, timeout_ms=60_000)
def resize(job: Resize, context: tickr.Context) -> dict:
    """Make the picture of an order smaller."""
    from django.conf import settings
    from PIL import Image, UnidentifiedImageError

    from shop.models import Order

    small = f"small/{job.order}.png"
    (settings.MEDIA_ROOT / "small").mkdir(parents=True, exist_ok=True)
    try:
        with Image.open(settings.MEDIA_ROOT / job.path) as picture:
            before = picture.size
            picture.thumbnail((job.width, job.width))
            picture.convert("RGB").save(settings.MEDIA_ROOT / small)
            after = picture.size
    except UnidentifiedImageError as error:
        # No further attempt can read it.
        raise tickr.Rejected(f"{job.path} is no picture") from error
    context.log("%s became %s", before, after)
    Order.objects.filter(pk=job.order).update(small_picture=small)
    return {"file": small, "size": list(after)}
