"""A headless Chromium driven over the W3C WebDriver protocol, for tests of pages."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-prefers-reduced-motion",  # a click must not wait for a page that is still scrolling
)
ENTER, SPACE, TAB = "\ue007", " ", "\ue004"


class Browser:
    """with Browser(folder, width, height, dark, phone) as browser: ..."""

    def __init__(self, folder, width=1280, height=900, dark=False, phone=False):
        self.process = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )  # it chooses a free port and says which
        for line in self.process.stdout:
            if found := re.search(r"on port (\d+)\.", line):
                self.root = f"http://127.0.0.1:{found[1]}"
                break
        flags = [*FLAGS, f"--user-data-dir={folder}/chromium-{time.time_ns()}", f"--window-size={width},{height}"]
        options = {"binary": CHROMIUM, "args": flags + (["--force-dark-mode"] if dark else [])}
        if phone:
            options["mobileEmulation"] = {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 2}}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self.root += f"/session/{made['sessionId']}"
        except BaseException:
            self.process.terminate()
            raise

    def _call(self, verb, path, body=None):
        data = None if verb == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(30)

    def open(self, page):
        self._call("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script, *arguments):
        """Value of a script's `return`."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return next(iter(self._call("POST", "/element", {"using": "css selector", "value": selector}).values()))

    def click(self, selector):
        self._call("POST", f"/element/{self.find(selector)}/click")

    def press(self, selector, keys):
        """Type into an element as a keyboard does."""
        self._call("POST", f"/element/{self.find(selector)}/value", {"text": keys})

    def console(self):
        """Everything the page wrote to the console, errors of loading included."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))
