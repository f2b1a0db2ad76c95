"""Images on entry: checked, upright, small, kept once."""

import base64
import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mia.errors import InputError, StorageError
from mia.runtime.images import MAX_BYTES, ImageStore, _fit
from mia.types import ImageRef


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(store, ref):
    head, _, payload = store.data_url(ref).partition(",")
    assert head == f"data:{ref.mime};base64"
    image = Image.open(io.BytesIO(base64.b64decode(payload)))
    assert (image.width, image.height) == (ref.width, ref.height)
    return image


@pytest.fixture
def store(tmp_path):
    return ImageStore(tmp_path / "images", max_pixels=100 * 100)


def test_a_large_image_keeps_its_aspect_and_fits(store):
    ref = store.add(encoded(Image.new("RGB", (800, 200), "red")))
    assert (ref.width, ref.height, ref.mime) == (200, 50, "image/png")
    assert decoded(store, ref).getpixel((5, 5)) == (255, 0, 0)


def test_a_small_image_is_not_enlarged(store):
    ref = store.add(encoded(Image.new("RGB", (10, 7))))
    assert (ref.width, ref.height) == (10, 7)


def test_photos_stay_jpeg_and_see_through_pictures_keep_their_alpha(store):
    assert store.add(encoded(Image.new("RGB", (9, 9)), "JPEG")).mime == "image/jpeg"
    assert store.add(encoded(Image.new("CMYK", (9, 9)), "JPEG")).mime == "image/jpeg"
    clear = store.add(encoded(Image.new("RGBA", (9, 9), (1, 2, 3, 0))))
    assert decoded(store, clear).getpixel((0, 0))[3] == 0
    for mode in ("P", "L", "1", "LA"):
        assert store.add(encoded(Image.new(mode, (9, 9)))).mime == "image/png"


@pytest.mark.parametrize("options", [{}, {"transparency": 65535}])
def test_sixteen_bits_of_grey_become_eight(store, options):
    deep = Image.new("I;16", (4, 1))
    for place, value in enumerate((0, 256, 32768, 65535)):
        deep.putpixel((place, 0), value)
    kept = decoded(store, store.add(encoded(deep, **options)))
    assert [kept.getpixel((place, 0))[:3] for place in range(4)] == [(grey,) * 3 for grey in (0, 1, 128, 255)]


@pytest.mark.filterwarnings("ignore")  # a decoder may grumble before it gives up
@pytest.mark.parametrize(("place", "value"), [(103, 4), (35, 77)])
def test_a_photo_with_broken_exif_is_refused(store, place, value):
    photo = Image.new("RGB", (4, 2))
    exif = photo.getexif()
    exif[0x0112], exif[0x010F], exif[0x011A] = 6, "abc", 1.5
    exif[0x8825], exif[0x8769] = {1: "N"}, {0x9000: b"0230"}
    data = bytearray(encoded(photo, "JPEG", exif=exif))
    start = data.index(b"Exif") + 6
    data[start + place] = value
    if place == 35:
        data[start + 62] = 3
    with pytest.raises(InputError, match="not an image"):
        store.add(bytes(data))


def test_a_photo_taken_sideways_is_turned_upright(store):
    photo = Image.new("RGB", (40, 20))
    exif = photo.getexif()
    exif[0x0112] = 6
    ref = store.add(encoded(photo, "JPEG", exif=exif))
    assert (ref.width, ref.height) == (20, 40)
    assert not decoded(store, ref).getexif()


def test_adding_twice_keeps_one_file(store):
    data = encoded(Image.new("RGB", (300, 300), "blue"))
    assert store.add(data) == store.add(data)
    assert len(list(store.folder.iterdir())) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a",
        b"<svg/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        encoded(Image.effect_noise((60, 60), 90))[:900],
        b"\x89PNG\r\n\x1a\n" + b"\0" * 99,
    ],
)
def test_what_is_no_image_is_refused_with_a_remedy(store, data):
    with pytest.raises(InputError) as caught:
        store.add(data)
    assert "PNG" in caught.value.remedy


def test_bytes_and_pixels_are_bounded(store):
    with pytest.raises(InputError, match="MB"):
        store.add(b"\0" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="pixels"):
        store.add(encoded(Image.new("1", (9000, 9000))))
    with pytest.raises(InputError):
        store.add(encoded(Image.new("1", (20000, 20000))))


@pytest.mark.filterwarnings("ignore")  # a decoder may grumble before it gives up
@given(
    data=st.binary(max_size=200),
    head=st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"BM", b"RIFF", b"\xff\xd8", b"GIF89a"]),
)
def test_no_bytes_get_past_as_anything_but_an_image_or_an_input_error(tmp_path_factory, data, head):
    with suppress(InputError):
        ImageStore(tmp_path_factory.getbasetemp() / "fuzz", 100).add(head + data)


def test_lost_bytes_are_a_storage_error(store):
    ref = store.add(encoded(Image.new("RGB", (9, 9))))
    next(store.folder.iterdir()).unlink()
    with pytest.raises(StorageError):
        store.data_url(ref)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        ImageStore(tmp_path / "file", 100).add(encoded(Image.new("RGB", (9, 9))))


def test_a_reference_cannot_lead_out_of_the_folder(store):
    with pytest.raises(InputError):
        store.data_url(ImageRef(sha256="../../etc/passwd", mime="image/png", width=1, height=1))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1024, 10**6))
def test_any_size_fits_and_none_grows(width, height, most):
    new_width, new_height = _fit(width, height, most)
    assert 1 <= new_width <= width
    assert 1 <= new_height <= height
    assert new_width * new_height <= most
