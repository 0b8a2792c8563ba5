"""The page, in a real browser that can reach nothing but the server."""

import csv
import io
import shutil
import warnings
from functools import partial

import pytest

from dsokr.commands.app import app
from dsokr.commands.predict import open_index
from dsokr.commands.reasons import explain_answer
from serving import MOLECULES, HandMade, Kind, describe_molecules, reason_by_letters, running

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, to drive a browser")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium", allow_module_level=True)
pytest.importorskip("rdkit", reason="needs the extra chem, to draw molecules")

from dsokr.serve import create_app  # noqa: E402 # after what may be missing


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def serving(model, texts=MOLECULES, examples=("an alcohol", "a ring"), reason=None):
    with running(create_app(model, model.index(texts), examples=examples, reason=reason)) as (address, _):
        yield address


@pytest.fixture(scope="module")
def model():
    return HandMade()


@pytest.fixture(scope="module")
def address(model):
    yield from serving(model)


@pytest.fixture(scope="module")
def words():
    """A server whose outputs are no molecules."""
    model = HandMade(input=Kind("vector", mean=(0.0, 0.0)), output=Kind("string"))
    yield from serving(model, texts=["red", "green", "<b>blue</b>"], reason=reason_by_letters)


LARGE = "CC(O)" * 42
LONG_NUMBERS = "0.30471707975443135, -1.0399841062404955, 0.7504511958064572"


@pytest.fixture(scope="module")
def snow():
    """A server from numbers to numbers, whose predictions are no candidates."""
    inputs = Kind("vector", (0.0,) * 3, ("air temperature", "wind", "slope"))
    output = Kind("vector", (0.0,) * 2, ("melt", "runoff"))
    model = HandMade(input=inputs, output=output, rule="kernel", answer="1.5 2.5", searches=True)
    yield from serving(model, texts=["1 2", "3;4", "-5 6e-7"], examples=(LONG_NUMBERS,) * 2)


@pytest.fixture(scope="module")
def colours():
    """A server whose prediction is one of the candidates, in other words."""
    model = HandMade(output=Kind("string"), answer="GREEN", searches=True)
    yield from serving(model, texts=["red", "green", "blue"], reason=reason_by_letters)


@pytest.fixture(scope="module")
def alcohols():
    """A server from words to molecules that explains its answers."""
    model = describe_molecules()
    app = create_app(model, open_index(model, None), reason=partial(explain_answer, model))
    with running(app) as (address, _):
        yield address


@pytest.fixture(scope="module")
def odd():
    """A server of molecules that are not drawn, whose model warns of its inputs."""
    model = HandMade()
    good = model.coefficients

    def warns(inputs):
        warnings.warn(f"What is said of {inputs[0]!r} is a guess.", stacklevel=1)
        return good(inputs)

    model.coefficients = warns
    yield from serving(model, texts=[LARGE, "no molecule"])


@pytest.fixture
def page(browser, address):
    """A tab at desktop width. Whatever it complains about, or asks of another host, fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    complaints, strangers = [], []
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on(
        "request",
        lambda asked: None if asked.url.startswith(("http://127.0.0.1", "blob:")) else strangers.append(asked.url),
    )
    tab.complaints = complaints
    yield tab
    context.close()
    assert not complaints and not strangers


def opened(tab, address, query=""):
    tab.goto(f"{address}/{query}")
    tab.wait_for_selector("[data-ready]")
    return tab


def until(tab, condition):
    """Wait for a JavaScript condition. (The browser's own waiting evaluates text, which the page forbids.)"""
    for _ in range(250):
        if tab.evaluate(condition):
            return
        tab.wait_for_timeout(20)
    raise AssertionError(condition)


def settled(tab):
    tab.wait_for_selector("#results:not(.busy)")
    tab.wait_for_selector(".hit")


def outputs(tab):
    return tab.locator(".hit code").all_inner_texts()


def expected(model, text, k, rule):
    found = model.index().search(model.coefficients([text]), k, rule)
    return [MOLECULES[i] for i in found.indices[0].tolist()]


def test_type_and_see(page, address, model):
    opened(page, address)
    assert page.get_by_label("Describe what you are looking for").is_visible()
    assert page.evaluate("document.activeElement.id") == "query"
    assert page.locator("#about").inner_text() == f"{len(MOLECULES)} molecules"
    page.keyboard.type("ethanol")
    page.keyboard.press("Enter")
    page.wait_for_selector(".hit")
    assert outputs(page) == expected(model, "ethanol", 10, "cosine")
    assert page.locator("#status").inner_text().startswith(f"The best 10 of {len(MOLECULES)} molecules, in ")
    until(page, "[...document.querySelectorAll('.hit img')].slice(0, 4).every(i => i.complete && i.naturalWidth > 0)")
    first = page.locator(".hit").first
    assert first.locator(".rank").inner_text() == "1"
    width = first.locator(".meter").get_attribute("aria-valuenow")
    assert 0 <= float(width) <= 1 and "score" in first.locator(".score").inner_text()
    assert page.evaluate("document.querySelector('.meter i').style.width").endswith("%")


def test_rule_and_k(page, address, model):
    opened(page, address, "?q=ethanol")
    page.wait_for_selector(".hit")
    page.get_by_role("radio", name="kernel").check()
    page.wait_for_url("**rule=kernel**")
    settled(page)
    assert outputs(page) == expected(model, "ethanol", 10, "kernel")
    page.get_by_label("Show").fill("3")
    page.get_by_label("Show").press("Enter")
    until(page, "document.querySelectorAll('.hit').length === 3")
    assert outputs(page) == expected(model, "ethanol", 3, "kernel")
    page.get_by_label("Show").fill("100000")
    page.get_by_label("Show").press("Enter")
    until(page, f"document.querySelectorAll('.hit').length === {len(MOLECULES)}")
    assert page.get_by_label("Show").input_value() == "100"


def test_the_address_says_it_all(page, address, model):
    opened(page, address, "?q=an%20ether%20%26%20more&k=4&rule=projected")
    page.wait_for_selector(".hit")
    assert page.get_by_label("Describe").input_value() == "an ether & more"
    assert outputs(page) == expected(model, "an ether & more", 4, "projected")
    page.get_by_label("Describe").fill("another")
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**q=another**")
    page.go_back()
    until(page, "document.getElementById('query').value === 'an ether & more'")
    settled(page)
    assert outputs(page) == expected(model, "an ether & more", 4, "projected")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == f"{address}/?q=an+ether+%26+more&k=4&rule=projected"


def test_copy_and_download(page, address, model):
    opened(page, address, "?q=acid&k=12")
    page.wait_for_selector(".hit")
    page.get_by_role("button", name="Copy the SMILES of number 2", exact=True).click()
    page.wait_for_selector(".copy.done")
    assert page.evaluate("navigator.clipboard.readText()") == outputs(page)[1]
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    assert download.value.suggested_filename == "ranked.csv"
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_bytes().decode())))
    assert [row["output"] for row in rows] == expected(model, "acid", 12, "cosine")
    assert {row["input"] for row in rows} == {"acid"} and 'benzene, "pure"' in {row["name"] for row in rows}
    scores = model.index().search(model.coefficients(["acid"]), 12, "cosine").scores[0].tolist()
    assert [float(row["score"]) for row in rows] == pytest.approx(scores)


def test_with_the_keyboard_alone(page, address):
    opened(page, address)
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query" and page.get_by_label("Describe").input_value() == ""
    page.keyboard.type("a")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("b")
    assert page.get_by_label("Describe").input_value() == "a\nb" and not page.locator(".hit").count()
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".hit")
    seen = []
    for _ in range(6):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.name"
            )
        )
    assert seen == ["go", "rule", "k", "link", "csv", "copy"]


def test_states(page, address):
    opened(page, address)
    assert page.get_by_text("The best molecules will be drawn here.").is_visible()
    assert page.locator("#bar").is_hidden() and page.locator("#alert").is_hidden()
    page.get_by_role("button", name="a ring").click()
    page.wait_for_selector(".hit")
    assert page.get_by_label("Describe").input_value() == "a ring"
    page.get_by_label("Describe").fill("bad")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text() == "'bad' cannot be read."
    assert not page.locator(".hit").count() and page.locator("#bar").is_hidden()
    assert all("422" in complaint for complaint in page.complaints)  # the browser notes a refusal by itself
    page.complaints.clear()
    page.get_by_label("Describe").fill("")
    page.keyboard.press("Enter")
    page.get_by_text("The best molecules will be drawn here.").wait_for()
    page.get_by_label("Describe").fill("good again")
    page.keyboard.press("Enter")
    page.wait_for_selector(".hit")
    assert page.locator("#alert").is_hidden()


def test_molecules_that_are_not_drawn_are_written(page, odd):
    opened(page, odd, "?q=a")
    page.wait_for_selector(".hit")
    until(page, "document.querySelectorAll('.undrawn').length === 2")
    assert sorted(outputs(page)) == [LARGE, "no molecule"]
    assert not page.locator(".hit img").first.is_visible()
    shown = page.locator(".hit code", has_text="CC(O)").evaluate("e => [e.clientHeight, e.scrollHeight]")
    assert shown[0] > 100 and shown[1] <= shown[0] + 2  # all of it
    assert all("422" in complaint for complaint in page.complaints)  # the browser notes a refusal by itself
    page.complaints.clear()


def test_notes(page, odd, address):
    opened(page, odd, "?q=rare")
    page.wait_for_selector(".hit")
    assert page.get_by_role("note").inner_text() == "What is said of 'rare' is a guess."
    page.locator("#query").fill("")
    page.keyboard.press("Enter")
    page.get_by_text("The best molecules will be drawn here.").wait_for()
    assert page.locator("#notes").is_hidden()
    until(page, "document.readyState === 'complete'")
    page.complaints.clear()
    opened(page, address, "?q=rare")
    page.wait_for_selector(".hit")
    assert page.locator("#notes").is_hidden()


def test_while_it_loads(page, address):
    opened(page, address)
    held = []
    page.route("**/predict", lambda route: held.append(route))
    page.keyboard.type("ethanol")
    page.keyboard.press("Enter")
    page.wait_for_selector(".ghost")
    assert page.locator("#results").get_attribute("aria-busy") == "true"
    held[0].continue_()
    page.wait_for_selector(".hit")
    assert page.locator("#results").get_attribute("aria-busy") == "false" and not page.locator(".ghost").count()


def test_when_the_server_is_gone(page, address):
    opened(page, address)
    page.route("**/predict", lambda route: route.abort())
    page.keyboard.type("ethanol")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    assert "does not answer" in page.get_by_role("alert").inner_text()
    page.complaints.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser, address, scheme):
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True, color_scheme=scheme)
    tab = opened(context.new_page(), address, "?q=a+long+description+that+takes+more+than+one+line+on+a+phone")
    tab.wait_for_selector(".hit")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360  # nothing to scroll sideways
    box = tab.evaluate("(e => [e.scrollHeight, e.clientHeight])(document.getElementById('query'))")
    assert box[0] <= box[1] + 2  # all of the text is seen
    assert tab.evaluate("Math.min(...[...document.querySelectorAll('.copy')].map(b => b.offsetHeight))") >= 32
    assert _contrast(tab, "#status") >= 4.5 and _contrast(tab, ".hit code") >= 4.5
    context.close()


def _contrast(tab, selector):
    """The ratio of WCAG between a text and what is behind it."""
    colours = tab.evaluate(
        """(selector) => {
          let e = document.querySelector(selector);
          const ink = getComputedStyle(e).color;
          while (getComputedStyle(e).backgroundColor === "rgba(0, 0, 0, 0)") e = e.parentElement;
          return [ink, getComputedStyle(e).backgroundColor].map((c) => c.match(/[\\d.]+/g).slice(0, 3).map(Number));
        }""",
        selector,
    )
    linear = [
        [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour] for colour in colours
    ]
    light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in linear)
    return (light[1] + 0.05) / (light[0] + 0.05)


def test_outputs_that_are_no_molecules(page, words):
    opened(page, words)
    assert page.get_by_label("2 numbers").is_visible()
    page.keyboard.type("0.5, -1,")
    page.keyboard.press("Enter")
    page.wait_for_selector(".hit")
    assert sorted(outputs(page)) == ["<b>blue</b>", "green", "red"]  # shown as they are, never as HTML
    assert not page.locator(".hit img").count() and not page.locator(".hit b", has_text="blue").count()
    assert page.locator("#own").is_hidden()  # the best of the list is all there is


def alert(tab, text):
    """What the page says of a question."""
    tab.locator("#query").fill(text)
    tab.keyboard.press("Enter")
    tab.get_by_role("alert").wait_for()
    return tab.get_by_role("alert").inner_text()


def test_numbers_that_cannot_be_used(page, words, snow):
    opened(page, words)
    assert alert(page, "one 2") == "Number 1 is not a number: 'one'."
    assert alert(page, "1 2 3") == "2 numbers are needed. Got 3."
    opened(page, snow)
    assert alert(page, "1 2 x") == "Number 3 (slope) is not a number: 'x'."
    assert alert(page, "1") == "3 numbers are needed. Got 1."
    assert not page.complaints  # nothing of it was asked
    assert alert(page, "1 1e39 2") == "Number 2 (wind) should be less than or equal to 3.4e+38."
    assert alert(page, "1 1e30 2").startswith("It is too far from the training inputs")
    page.complaints.clear()


def test_a_text_that_is_too_long(page, address):
    opened(page, address)
    page.keyboard.insert_text("a" * 5001)
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("alert").inner_text() == "The text is longer than 5,000 characters."


@pytest.mark.parametrize(
    ("kind", "label", "example"),
    [
        ("spectrum", "Peaks of a spectrum", "m/z:intensity, e.g. 91.05:100 65.04:23"),
        ("smiles", "SMILES of the input molecule", "e.g. CC(=O)Oc1ccccc1C(=O)O"),
        ("string", "Input string", "a word, a code or a sequence"),
    ],
)
def test_the_prompt_fits_the_kind_of_input(page, kind, label, example):
    for address in serving(HandMade(input=Kind(kind))):
        opened(page, address)
        assert page.get_by_label(label).is_visible()
        assert page.locator("#query").get_attribute("placeholder") == example


def test_columns_and_a_prediction_of_its_own(page, snow):
    opened(page, snow)
    assert page.get_by_label("3 numbers: air temperature, wind, slope").is_visible()
    assert page.locator("#query").get_attribute("placeholder") == "air temperature, wind, slope"
    page.keyboard.type("1 2 3")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits .hit")
    assert page.locator("#own h2").all_inner_texts() == [
        "Predicted found among all possible outputs",
        "Nearest known outputs",
    ]
    assert page.locator("#predicted code").all_inner_texts() == ["melt 1.5 runoff 2.5"]
    known = page.locator("#hits code").all_inner_texts()
    assert sorted(known) == ["melt -5 runoff 6e-7", "melt 1 runoff 2", "melt 3 runoff 4"]
    page.get_by_role("button", name="Copy of the prediction").click()
    page.wait_for_selector(".copy.done")
    assert page.evaluate("navigator.clipboard.readText()") == "1.5 2.5"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_bytes().decode())))
    assert [row["rank"] for row in rows] == ["predicted", "1", "2", "3"]
    assert (rows[0]["output_melt"], rows[0]["output_runoff"]) == ("1.5", "2.5")
    assert {row["output_runoff"] for row in rows[1:]} == {"2", "4", "6e-7"}
    page.locator("#query").fill("")
    page.keyboard.press("Enter")
    page.get_by_text("The prediction and the nearest known outputs will be shown here.").wait_for()
    assert page.locator("#own").is_hidden()


def test_many_columns(page, snow):
    opened(page, snow)
    wide = "(model.columns = [...'abcdefghijkl'], model.width = 12, describeNumbers()[0])"
    assert page.evaluate(wide) == "12 numbers: a, b, c, d, e, f, …, l"
    assert page.evaluate("(model.columns = ['spectrum'], describeNumbers()[0])") == "12 numbers (spectrum)"


def test_a_prediction_that_is_a_candidate_is_shown_once(page, colours):
    opened(page, colours, "?q=grass")
    page.wait_for_selector("#hits .hit")
    assert page.locator("#predicted code").all_inner_texts() == ["green"]
    assert page.locator("#whether").inner_text().startswith("also rank ")
    assert sorted(page.locator("#hits code").all_inner_texts()) == ["blue", "red"]
    assert page.locator("#predicted .meter").is_visible()


def test_a_prediction_that_takes_too_long(page, colours):
    opened(page, colours)

    def late(route):
        if route.request.post_data_json["predict"]:
            route.fulfill(status=504, json={"error": "The answer took too long.", "where": ""})
        else:
            route.continue_()

    page.route("**/predict", late)
    assert "took too long. These are the nearest known outputs." in alert(page, "grass")
    assert sorted(page.locator("#hits code").all_inner_texts()) == ["blue", "green", "red"]
    assert page.locator("#own").is_hidden()
    page.complaints.clear()


def test_why_atoms_and_words(page, alcohols):
    opened(page, alcohols, "?q=a+long+alcohol&k=3")
    page.wait_for_selector(".hit")
    first = page.locator(".hit").first
    plain = first.locator("img").evaluate("img => img.src")
    why = first.get_by_role("button", name="Why does number 1 have this score?")
    why.click()
    first.locator(".why span").first.wait_for()
    assert first.locator(".why span").all_inner_texts() == ["a", "long", "alcohol"]
    colours = first.locator(".why span").evaluate_all("all => all.map((e) => e.style.background)")
    assert "rgb(89, 153, 255)" in colours and len(set(colours)) == 3
    assert "orange against. The contributions add up to" in first.locator(".why .quiet").inner_text()
    assert first.locator("img").get_attribute("src").startswith("blob:")
    assert why.get_attribute("aria-expanded") == "true"
    until(page, "(i => i.complete && i.naturalWidth > 0)(document.querySelector('.hit img'))")
    why.click()
    assert first.locator(".why").is_hidden() and first.locator("img").evaluate("img => img.src") == plain
    page.route("**/explain", lambda route: route.abort())  # it need not ask again
    why.click()
    assert first.locator(".why").is_visible()
    page.locator(".hit").nth(1).locator(".ask-why").click()
    page.get_by_text("The server does not answer.").wait_for()
    page.complaints.clear()


def test_why_letters_and_a_refusal(page, words, colours, address):
    opened(page, words, "?q=1 2")
    page.wait_for_selector("#hits .hit")
    card = page.locator("#hits .hit", has_text="<b>")
    card.locator(".ask-why").click()
    card.locator(".why p").nth(1).wait_for()
    assert card.locator(".why p").all_inner_texts()[:2] == ["1.0;2.0", "<b>blue</b>"]  # written, never HTML
    opened(page, colours, "?q=any")
    page.wait_for_selector("#hits .hit")
    page.route(
        "**/explain",
        lambda route: route.fulfill(status=422, json={"error": "output: Nothing can be left out.", "where": "output"}),
    )
    page.get_by_role("button", name="Why does the prediction have this score?").click()
    page.get_by_text("Nothing can be left out.", exact=True).wait_for()
    page.complaints.clear()  # the browser notes a refusal by itself
    opened(page, address, "?q=any")
    page.wait_for_selector(".hit")
    assert not page.locator(".ask-why").count()


@pytest.mark.parametrize("width", [320, 375])
def test_nothing_scrolls_sideways_on_small_phones(browser, snow, address, width):
    context = browser.new_context(viewport={"width": width, "height": 700}, has_touch=True)
    for start, query in ((snow, ""), (snow, f"?q={LONG_NUMBERS}"), (snow, "?q=x"), (address, ""), (address, "?q=a")):
        tab = opened(context.new_page(), start, query)
        tab.wait_for_selector("#results:not(.busy)")
        assert tab.evaluate("document.documentElement.scrollWidth") == width
    context.close()


def test_a_report_on_a_phone_breaks_lines_between_words(browser, tmp_path):
    rows = [f"{a},{b},{'up' if a > b else 'down'}" for a in range(8) for b in range(8)]
    (tmp_path / "pairs.csv").write_text("heat of the air,wind,way\n" + "\n".join(rows) + "\n")
    arguments = ["fit", "--train", tmp_path / "pairs.csv", "--input", "heat of the air,wind", "--output", "way"]
    app([*map(str, arguments), "--out", str(tmp_path / "model"), "--epochs", "1"], standalone_mode=False)
    context = browser.new_context(viewport={"width": 375, "height": 700})
    tab = context.new_page()
    tab.goto((tmp_path / "model" / "report.html").as_uri())
    lines = tab.evaluate(
        """[...document.querySelectorAll(".facts td:first-child")].flatMap((cell) =>
          [...cell.textContent.matchAll(/\\S+/g)].map((word) => {
            const range = document.createRange();
            range.setStart(cell.firstChild, word.index);
            range.setEnd(cell.firstChild, word.index + word[0].length);
            return range.getClientRects().length;
          }))"""
    )
    assert len(lines) > 3 and set(lines) == {1} and tab.evaluate("document.documentElement.scrollWidth") == 375
    context.close()


def test_only_candidates_of_a_mass_or_a_formula(page, alcohols):
    opened(page, alcohols, "?q=a+long+alcohol&k=5")
    settled(page)
    assert page.get_by_label("Column of the candidates").input_value() == "exact_mass"
    assert "formula C5H12O" in page.locator(".hit .cells").first.text_content()
    page.get_by_label("Its value").fill("88.0888")
    page.get_by_label("Its value").press("Enter")
    until(page, "document.getElementById('status').textContent.includes('that are possible')")
    settled(page)
    assert outputs(page) == ["CCCCCO"] and "only=exact_mass" in page.url and "near=10+ppm" in page.url
    page.get_by_label("Tolerance").fill("ten")
    page.get_by_label("Tolerance").press("Enter")
    assert "The tolerance is a number" in page.locator("#alert").text_content()
    page.get_by_label("Column of the candidates").select_option("formula")
    page.get_by_label("Its value").fill("C3H6O2")
    page.get_by_label("Its value").press("Enter")
    until(page, "document.querySelectorAll('.hit').length === 1")
    assert outputs(page) == ["CCC(=O)O"] and not page.get_by_label("Tolerance").is_visible()
    page.get_by_label("Its value").fill("C99")
    page.get_by_label("Its value").press("Enter")
    until(page, "document.getElementById('status').textContent.startsWith('None')")
    opened(page, alcohols, "?q=a+long+alcohol&only=exact_mass&value=x")
    assert "exact_mass is not a number: 'x'." in page.locator("#alert").text_content()
