"""What people do next, in a real browser: correct, add, rename, merge, undo, forget, zip, hints, mistakes, camera.

Run by `make test-browser`. Set SCREENSHOTS to a folder to keep pictures of the page.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clom.data.folders import read_folder
from clom.methods.ncm import Ncm
from clom.nets import AdapterSettings
from clom.photos.teach import learn_pictures
from clom.serve.client import Client
from clom.serve.security import Access
from clom.storage.model_file import save_model
from serve.running import serving, wait_until

pytest.importorskip("playwright", reason="make test-browser installs it")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as Overdue

from serve.test_browser import ask, picture

pytestmark = pytest.mark.browser

SIDE = 96


@pytest.fixture
def client(photos: Path, tmp_path: Path) -> Iterator[Client]:
    """A server whose model knows patterns, then shapes."""
    method = Ncm(AdapterSettings(), Ncm.settings_type(), (3, SIDE, SIDE))
    for task in ("patterns", "shapes"):
        learn_pictures(method, read_folder(photos / task, SIDE), task)
    path = tmp_path / "model.safetensors"
    save_model(path, method)
    with serving(path) as (found, _):
        yield found


@pytest.fixture
def page(browser: Browser, client: Client) -> Iterator[Page]:
    found = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    found.on("pageerror", lambda problem: complaints.append(str(problem)))
    found.on("console", lambda text: complaints.append(text.text) if "Content Security" in text.text else None)
    found.goto(client.url)
    yield found
    found.close()
    assert complaints == []


def tasks(client: Client) -> dict[str, list[str]]:
    return {task["name"]: task["classes"] for task in client.model()["tasks"]}


def sound(page: Page, name: str) -> None:
    """No finding of axe-core; a picture for people to look at."""
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
    assert found.violations_count == 0, found.generate_report()
    picture(page, name)


def test_a_wrong_answer_is_corrected(page: Page, client: Client, photos: Path) -> None:
    page.fill("#ask-rate", "0")
    star = sorted((photos / "unused" / "stars").iterdir())[:2]
    (first, _) = ask(page, star)
    assert first in ("circles", "squares", "dots", "stripes")
    page.locator(".card .wrong").first.click()
    page.locator(".card select").select_option("squares")
    page.locator(".card .wrong").first.click()
    page.locator(".card select").select_option("circles")
    expect(page.locator("#ask-fixes-text")).to_contain_text("2 corrections")
    page.locator(".card .corrected button").nth(1).click()
    expect(page.locator("#ask-fixes-text")).to_contain_text("1 correction:")
    sound(page, "correcting")
    before = {task["name"]: task["fingerprint"] for task in client.model()["tasks"]}
    page.click("#ask-fixes-go")
    expect(page.locator("#job-done")).to_have_text(re.compile(r"Added: (squares|circles) \(1\)"), timeout=60_000)
    expect(page.locator(".proof")).to_contain_text("Nothing was forgotten")
    sound(page, "corrected")
    after = {task["name"]: task["fingerprint"] for task in client.model()["tasks"]}
    assert (after["patterns"], after["shapes"] == before["shapes"]) == (before["patterns"], False)
    page.click("#teach-job >> text=Ask it")
    expect(page.locator(".card .bars")).to_have_count(2, timeout=30_000)
    expect(page.locator("#ask-fixes")).to_be_hidden()


def test_an_open_menu_stays_open_when_the_page_is_drawn_again(page: Page) -> None:
    page.click("nav >> text=Look inside")
    menu = page.locator("details.menu", has_text="dots")
    menu.locator("summary").click()
    drawn = menu.element_handle()
    page.evaluate("document.dispatchEvent(new Event('model-changed'))")
    wait_until(lambda: not drawn.evaluate("element => element.isConnected"))
    expect(menu).to_have_attribute("open", "")
    expect(menu.locator("summary")).to_be_focused()


def test_more_pictures_of_a_known_class(page: Page, client: Client, photos: Path) -> None:
    before = sum(client.model()["tasks"][0]["images"])
    page.click("nav >> text=Teach")
    page.check("#teach-more")
    expect(page.locator("#teach-name-field")).to_be_hidden()
    page.click("#teach-go")
    expect(page.locator("#teach-problem")).to_contain_text("Choose a class")
    page.locator(".class select").nth(0).select_option("dots")
    page.click("#teach-go")
    expect(page.locator("#teach-problem")).to_contain_text("needs 1 picture or more")
    page.locator(".class input[type=file]").nth(0).set_input_files(sorted((photos / "new" / "dots").iterdir()))
    sound(page, "more")
    page.click("#teach-go")
    expect(page.locator("#job-done")).to_have_text("Added: dots (3)", timeout=60_000)
    sound(page, "added")
    assert sum(client.model()["tasks"][0]["images"]) == before + 3


def choose(page: Page, name: str, action: str) -> None:
    """Open the menu of a class and click; after a change the page is drawn again, which closes menus."""

    def clicked() -> bool:
        if not page.locator(".menu[open]").count():
            page.click(f".menu summary:has-text('{name}')")
        try:
            page.click(f".menu[open] >> text={action}", timeout=1000)
        except Overdue:
            return False
        return True

    wait_until(clicked)


def test_names_merges_undo_and_forgetting(page: Page, client: Client) -> None:
    page.click("nav >> text=Look inside")
    page.click("text=Rename patterns")
    page.fill("#change-name", "  ")
    page.click("#change-go")
    expect(page.locator("#change-problem")).to_contain_text("needs a name")
    page.fill("#change-name", "shapes")
    page.click("#change-go")
    expect(page.locator("#change-problem")).to_contain_text("There is a task 'shapes' already")
    sound(page, "renaming")
    page.fill("#change-name", "textures")
    page.keyboard.press("Enter")
    expect(page.locator("#change")).to_be_hidden()
    expect(page.locator("#inside-said")).to_have_text("The task 'patterns' is now 'textures'.")
    expect(page.locator(".timeline h3").nth(0)).to_have_text("textures")
    choose(page, "dots", "Merge")
    page.select_option("#change-name", "stripes")
    page.click("#change-go")
    expect(page.locator(".menu summary:has-text('dots')")).to_contain_text("answered as stripes")
    sound(page, "merged")
    page.click("#inside-undo")
    page.click("#change-go")
    expect(page.locator(".menu summary:has-text('dots')")).not_to_contain_text("answered as")
    expect(page.locator("#inside-undo")).to_be_hidden()
    choose(page, "circles", "Rename")
    page.fill("#change-name", "discs")
    page.click("#change-go")
    expect(page.locator(".menu summary:has-text('discs')")).to_be_visible()
    assert tasks(client) == {"textures": ["dots", "stripes"], "shapes": ["discs", "squares"]}
    page.click("text=Forget shapes")
    expect(page.locator("#change-cancel")).to_be_focused()
    page.keyboard.press("Escape")
    assert "shapes" in tasks(client)
    page.click("text=Forget shapes")
    sound(page, "forgetting")
    page.click("#change-go")
    expect(page.locator("#inside-said")).to_contain_text("Forgot 'shapes'")
    assert tasks(client) == {"textures": ["dots", "stripes"]}
    expect(page.locator("#inside-undo")).to_be_hidden()


def packed(folder: Path, target: Path, *names: str) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            for file in sorted((folder / name).iterdir()):
                archive.write(file, f"holiday/{name}/{file.name}")
        archive.writestr("__MACOSX/holiday/._x.png", b"x")
        archive.writestr("holiday/notes.txt", b"x")
    return target


def test_a_zip_file_hints_and_mistakes(page: Page, client: Client, photos: Path, tmp_path: Path) -> None:
    """One photo is in both classes: it is noticed before anything is learned."""
    folder = tmp_path / "unused"
    shutil.copytree(photos / "unused", folder)
    shutil.copy(next((folder / "stars").iterdir()), folder / "checks" / "copy.png")
    page.goto(f"{client.url}#teach")
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    page.set_input_files("#teach-zip", tmp_path / "bad.zip")
    expect(page.locator("#teach-problem")).to_contain_text("bad.zip cannot be read as a zip file")
    page.set_input_files("#teach-zip", packed(folder, tmp_path / "photos.zip", "stars", "checks"))
    expect(page.locator(".amount").nth(1)).to_contain_text("13 pictures")
    names = [page.locator(".class input[type=text]").nth(place).input_value() for place in range(2)]
    assert names == ["stars", "checks"]
    page.click("#teach-go")
    expect(page.locator(".hints")).to_contain_text("One photo is in two classes", timeout=30_000)
    sound(page, "hints")
    version = client.model()["version"]
    page.click("text=Change the pictures")
    expect(page.locator(".amount").nth(1)).to_contain_text("13 pictures")
    assert client.model()["version"] == version
    page.click("#teach-go")
    page.click("text=Learn anyway")
    expect(page.locator("#job-done")).to_have_text("Learned: stars, checks", timeout=60_000)
    page.click(".mistakes summary")
    expect(page.locator(".confusion td").first).to_be_visible()
    sound(page, "mistakes")


def test_a_bomb_is_not_unpacked(page: Page, client: Client, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(30):
            archive.writestr(f"cat/{number}.jpg", b"\0" * 39_000_000)
    page.goto(f"{client.url}#teach")
    page.set_input_files("#teach-zip", tmp_path / "bomb.zip")
    expect(page.locator("#teach-problem")).to_contain_text("would unpack to 1.2 GB; 1 GB is the most")


def test_the_camera_takes_pictures_of_a_class(page: Page) -> None:
    page.click("nav >> text=Teach")
    page.locator(".class >> text=Camera").first.click()
    wait_until(lambda: page.evaluate("document.getElementById('camera-view').videoWidth") > 0)
    for number in range(1, 3):
        page.click("#camera-take")
        expect(page.locator("#camera-said")).to_contain_text(f"{number} picture")
    sound(page, "camera")
    page.click("#camera-close")
    expect(page.locator(".amount").nth(0)).to_contain_text("2 pictures")
    wait_until(lambda: page.evaluate("document.getElementById('camera-view').srcObject") is None)  # the camera is off


def test_mistakes_of_labelled_folders(page: Page, photos: Path) -> None:
    page.set_input_files("#ask-folder", photos / "new")
    expect(page.locator(".card .bars")).to_have_count(18, timeout=60_000)
    expect(page.locator("#ask-mistakes summary")).to_contain_text("on 12 labelled pictures")
    page.fill("#ask-rate", "50")
    expect(page.locator("#ask-mistakes summary")).to_contain_text("mistake")
    page.click("#ask-mistakes summary")
    expect(page.locator("#ask-mistakes th:has-text('unknown')")).to_be_visible()
    sound(page, "labelled")


def test_who_may_not_teach_is_not_offered_it(browser: Browser, client: Client, photos: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "model.safetensors", access=Access(read_only=True)) as (closed, _):
        page = browser.new_page()
        page.goto(closed.url)
        page.set_input_files("#ask-files", next((photos / "new" / "dots").iterdir()))
        expect(page.locator(".card .bars")).to_have_count(1, timeout=30_000)
        expect(page.locator(".wrong")).to_have_count(0)
        page.goto(f"{closed.url}#inside")
        expect(page.locator(".timeline h3")).to_have_count(2)
        expect(page.locator(".task-buttons, .menu")).to_have_count(0)
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_anyone_can_read_it(browser: Browser, client: Client, photos: Path, width: int, scheme: Any) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")

    def look(name: str) -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than the screen"
        sound(page, f"{name}-{width}-{scheme}")

    page.goto(client.url)
    page.set_input_files("#ask-folder", photos / "new")
    expect(page.locator(".card .bars")).to_have_count(18, timeout=60_000)
    page.fill("#ask-rate", "50")
    page.click("#ask-mistakes summary")
    page.locator(".card .wrong").first.click()
    page.locator(".card select").select_option("squares")
    look("next-ask")
    page.goto(f"{client.url}#teach")
    page.check("#teach-more")
    page.locator(".class select").nth(0).select_option("dots")
    page.locator(".class input[type=file]").nth(0).set_input_files(sorted((photos / "new" / "dots").iterdir()))
    look("next-teach")
    page.goto(f"{client.url}#inside")
    page.click(".menu summary:has-text('dots')")
    look("next-inside")
    page.click(".menu[open] >> text=Merge")
    look("next-merge")
    page.close()
