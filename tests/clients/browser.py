#!/usr/bin/env python3
"""The web page in a headless Chromium, on the bundled model.

    browser.py BUILD [PICTURES]     run from the root of the repository by scripts/check --clients;
                                    PICTURES: a folder for screenshots

Needs Debian's chromium and chromium-driver; without them it says so and is skipped.
"""
import functools
import json
import os
import pathlib
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
from serving import Server, run, until  # noqa: E402

if not (shutil.which("chromium") and shutil.which("chromedriver")):
    print("skipped: the test of the web page needs the packages chromium and chromium-driver")
    sys.exit(0)

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

BINARY = os.path.join(sys.argv[1], "firstlight")
PICTURES = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
LONG = "Explain how a database index works."


def browser():
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--window-size=1280,860", "--no-first-run", "--disable-background-networking"):
        options.add_argument(word)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


class Page:
    def __init__(self, server):
        self.d = browser()
        self.url = f"http://127.0.0.1:{server.port}/"
        self.fresh()

    def fresh(self, **settings):
        """An empty browser with these settings."""
        self.d.get(self.url)
        self.d.execute_script("localStorage.clear(); store = {chats: [], at: null};"
                              "localStorage.setItem('firstlight.settings', arguments[0]);"
                              "onpagehide = null; removeEventListener('pagehide', save)",
                              json.dumps(settings))
        self.d.get(self.url)
        until(lambda: self.text("#model") == "firstlight-tiny")

    def all(self, css):
        return self.d.find_elements(By.CSS_SELECTOR, css)

    def text(self, css):
        found = self.all(css)
        return found[-1].get_property("textContent") if found else ""

    def type(self, text):
        box = self.all("#input")[0]
        box.send_keys(text)
        box.send_keys(Keys.ENTER)

    def busy(self):
        return self.d.execute_script("return running !== null")

    def ask(self, text):
        self.type(text)
        until(lambda: not self.busy())

    def picture(self, name):
        if PICTURES:
            PICTURES.mkdir(exist_ok=True)
            self.d.save_screenshot(str(PICTURES / f"{name}.png"))

    def size(self, width, height):
        self.d.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700})

    def complaints(self):
        return [e["message"] for e in self.d.get_log("browser") if e["level"] == "SEVERE"]


def test_send_and_stream(p):
    p.fresh(effort="none", temperature="0")
    p.picture("empty")
    p.d.execute_script("""window.grown = new Set();
        new MutationObserver(() => grown.add(document.querySelector('.assistant .text')?.textContent.length))
          .observe(document.getElementById('list'), {subtree: true, childList: true, characterData: true})""")
    p.ask("Who are you?")
    assert p.text(".msg.assistant .text").strip().startswith("I am First Light"), p.text(".msg.assistant")
    assert p.d.execute_script("return grown.size") > 2, "it came in one piece"
    assert "tokens" in p.text(".foot span"), p.text(".foot span")
    p.ask("Introduce yourself.")
    assert len(p.all(".msg.user")) == 2 and len(p.all(".msg.assistant")) == 2
    p.picture("answers")


def test_reasoning_is_folded(p):
    p.fresh(temperature="0")
    p.ask("Introduce yourself.")
    think = p.all(".think")
    assert len(think) == 1 and not think[0].get_property("open")
    assert think[0].find_element(By.TAG_NAME, "div").get_property("textContent")
    assert p.text(".think summary").startswith("Thought")  # "Thoughts", "Thought for 1.2 s"


def test_stop(p):
    p.fresh(effort="none", temperature="1", max="3500")
    p.d.execute_script("const asked = body; body = m => ({...asked(m), ignore_eos: true})")
    p.type(LONG)
    until(lambda: len(p.text(".msg.assistant .text")) > 3)
    assert p.all("#send")[0].get_attribute("aria-label") == "Stop"
    if p.busy():
        p.all("#send")[0].click()
    until(lambda: not p.busy())
    said = p.text(".msg.assistant .text")
    time.sleep(0.3)
    assert said and p.text(".msg.assistant .text") == said
    assert p.all("#send")[0].get_attribute("aria-label") == "Send"
    assert "stopped" in p.text(".foot span"), p.text(".foot span")


def test_reload_keeps_the_conversation(p):
    p.fresh(effort="none", temperature="0")
    p.ask("Who are you?")
    said = p.text(".msg.assistant .text")
    p.d.refresh()
    until(lambda: p.text("#model") == "firstlight-tiny")
    assert p.text(".msg.user .text") == "Who are you?" and p.text(".msg.assistant .text") == said
    p.ask("And what can you do?")  # goes on where it was
    assert len(p.all(".msg.assistant")) == 2 and len(p.all(".chat")) == 1
    p.all("#new")[0].click()
    assert not p.all(".msg") and p.all(".hello")
    p.all(".chat button")[0].click()
    assert len(p.all(".msg")) == 4
    p.all(".chat button")[1].click()
    assert not p.all(".chat") and not p.all(".msg")


def test_an_error_is_shown(p):
    p.fresh(effort="none", temperature="0", max="100000")
    p.ask("Who are you?")
    assert "max_tokens" in p.text(".error span"), p.text("#list")
    p.picture("error")
    p.d.execute_script("settings.max = ''")
    p.all(".error button")[0].click()
    until(lambda: not p.busy())
    assert not p.all(".error") and p.text(".msg.assistant .text").strip()
    p.d.execute_script("settings.tools = '[{'")
    p.ask("x")
    assert "not JSON" in p.text(".error span")


def test_tool_calls(p):
    tools = [{"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather for a city.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "City name"}}}}}]
    p.fresh(effort="none", temperature="0", tools=json.dumps(tools))
    p.ask("What is the weather in Hanoi?")
    assert p.text(".tool b") == "get_weather" and "Hanoi" in p.text(".tool pre")
    p.picture("tool")
    p.all(".tool textarea")[0].send_keys("14C")
    p.all(".tool .reply button")[0].click()
    until(lambda: not p.busy() and len(p.all(".msg.assistant")) == 2)
    assert "14" in p.text(".msg.assistant .text")


def test_what_a_model_says_is_only_text(p):
    html = p.d.execute_script("return markup(arguments[0])",
                              "<img src=x onerror=alert(1)> `<b>` [a](javascript:alert(1)) **b**\n"
                              "```html\n<script>\n```\n- one\n- two\n\n1. x")
    assert "<img" not in html and "<script" not in html and "href" not in html, html
    for part in ("<strong>b</strong>", "<code>&lt;b&gt;</code>", "<pre>", "<ul><li>one</li>", "<ol>"):
        assert part in html, html
    assert p.all("#dot")[0].get_attribute("class") == "ok" and "tokens of context" in p.text("#facts")


def test_phone_light_and_dark(p):
    p.fresh(temperature="0")
    p.ask("Introduce yourself.")
    for theme in ("light", "dark"):
        p.d.execute_script("theme(arguments[0])", theme)
        for name, (w, h) in {"desktop": (1280, 860), "phone": (390, 844)}.items():
            p.size(w, h)
            time.sleep(0.3)
            p.picture(f"{name}-{theme}")
            wide = p.d.execute_script("return document.documentElement.scrollWidth")
            assert wide <= w, (name, wide)
    p.all("#menu")[0].click()
    time.sleep(0.3)
    assert p.all("#new")[0].is_displayed()
    p.picture("phone-menu")
    p.d.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    p.fresh()
    p.all("#gear")[0].click()
    p.picture("settings")
    p.all("#s-temperature")[0].send_keys("0.5")
    p.all("dialog .done")[0].click()
    until(lambda: p.d.execute_script("return settings.temperature") == "0.5")


def main():
    tests = [(n, t) for n, t in globals().items() if n.startswith("test_")]
    with Server(BINARY, "--threads", "1") as s:
        p = Page(s)
        try:
            status = run([(n, functools.partial(t, p)) for n, t in tests])
            complaints = [c for c in p.complaints() if "400 (Bad Request)" not in c]
            if complaints:
                print("FAIL the console says:", *complaints, sep="\n  ")
                status = 1
        finally:
            p.d.quit()
        s.idle()
    return status


if __name__ == "__main__":
    sys.exit(main())
