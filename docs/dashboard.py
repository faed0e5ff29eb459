"""Makes docs/dashboard.webp: the live page of a server that is asked texts of many lengths, seen in headless Chromium.

    cargo build --release && cargo xtask model
    python3 docs/dashboard.py target/release/turbo models/minilm

Needs Python 3.10 and Debian's `chromium`. What is on the picture is what that server measured of itself, so it is taken
while the machine does nothing else: that is looked at first.
"""

import argparse
import base64
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

WORDS = "the river runs past seven old mills and nobody in town remembers who built them or why".split()


BUSY = 0.5  # processes that run or would like to, in the mean of the last minute


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("turbo")
    parser.add_argument("model")
    parser.add_argument("flags", nargs="*", default=["--batching=naive", "--max-batch-tokens=2048"],
                        help="of the server, behind `--`: by default all that waits is a batch, as a GPU would have it, so that packing is seen")
    parser.add_argument("--seconds", type=int, default=150, help="how long the server is asked")
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second, in the mean")
    parser.add_argument("--scheme", choices=["light", "dark"], default="dark")
    parser.add_argument("--size", default="1320x1130")
    parser.add_argument("--whole", action="store_true", help="all of the page, and not what fits into the size")
    parser.add_argument("--busy", action="store_true", help="take it on a machine that does other things, too")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "dashboard.webp"))
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    if os.getloadavg()[0] > BUSY and not arguments.busy:
        sys.exit(f"the machine is busy (load {os.getloadavg()[0]:.1f}), and the picture would show that: wait, or --busy")
    command = [arguments.turbo, "serve", "--hostname=127.0.0.1", "--port=0", "--model-id", arguments.model,
               *arguments.flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = re.search(r"http://\S+", server.stdout.readline())
        if said is None:
            sys.exit("the server did not start: what it said of that is above")
        load(said[0], arguments.seconds, arguments.rate)
        picture = photograph(said[0] + "/dashboard", width, height, arguments.scheme, arguments.whole)
    finally:
        server.terminate()
        server.wait()
    with open(arguments.out, "wb") as file:  # a picture that could not be taken leaves the old one
        file.write(picture)
    print(f"{arguments.out}: {len(picture)} bytes")


def load(url, seconds, rate):
    """Asks as strangers do: at random times, whether or not what came before is answered, at a rate that rises and falls; one
    request in five is of those that wait for nobody, and one in five of those that nobody waits for."""
    chance, end = random.Random(1), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        inputs = [text(chance) for _ in range(chance.choice([1, 1, 2, 4, 8, 16]))]
        priority = chance.choice(["high", "normal", "normal", "normal", "low"])
        threading.Thread(target=ask, args=(url, inputs, priority), daemon=True).start()
        busier = 0.4 + 1.2 * abs(((left / 45) % 2) - 1)
        time.sleep(chance.expovariate(rate * busier))


def text(chance):
    """A text of a few words, or now and then of some dozens; one in ten is a text that is asked often."""
    words = min(180, 2 + int(chance.lognormvariate(2.4, 0.9)))
    if chance.random() < 0.1:
        chance = random.Random(words % 5)
    return " ".join(chance.choices(WORDS, k=words))


def ask(url, inputs, priority):
    body, headers = json.dumps({"inputs": inputs}).encode(), {"content-type": "application/json", "x-request-priority": priority}
    try:
        urllib.request.urlopen(urllib.request.Request(url + "/embed", body, headers), timeout=60).read()
    except urllib.error.HTTPError as error:
        if error.code not in (429, 504):  # an honest word to those who come when all places are taken
            raise
    except (urllib.error.URLError, ConnectionError):
        pass  # the picture is taken, and the server has gone


# Whether the page shows a live server that has batches; True, or what it says instead.
SHOWN = """document.getElementById("state").textContent === "live" && document.querySelectorAll("#shelf figure").length > 0
    || document.body.innerText.slice(0, 300)"""


def photograph(url, width, height, scheme, whole):
    """Bytes of a WebP. Chromium's tools protocol goes over descriptors 3 and 4, a zero byte behind each message."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        chromium = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                    "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        script = 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2'
        browser = subprocess.Popen(["sh", "-c", script, "sh", *chromium], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        numbers = iter(range(1, 1000))

        def call(method, session=None, **params):
            number = next(numbers)
            message = {"id": number, "method": method, "params": params}
            browser.stdin.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
            browser.stdin.flush()
            while (answer := json.loads(until_zero(browser.stdout))).get("id") != number:
                pass
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            return answer["result"]

        try:
            target = call("Target.createTarget", url="about:blank")["targetId"]
            session = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            call("Emulation.setDeviceMetricsOverride", session, width=width, height=height, deviceScaleFactor=1.5, mobile=False)
            call("Emulation.setEmulatedMedia", session, features=[
                {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}])
            call("Page.navigate", session, url=url)
            for _ in range(40):
                time.sleep(0.5)
                shown = call("Runtime.evaluate", session, expression=SHOWN)["result"].get("value")
                if shown is True:
                    break
            else:
                sys.exit(f"the page does not show batches, but: {shown}")
            time.sleep(2)  # it asks once a second
            beyond = {"captureBeyondViewport": True, "clip": extent(call("Page.getLayoutMetrics", session))} if whole else {}
            data = call("Page.captureScreenshot", session, format="webp", quality=86, **beyond)["data"]
            return base64.b64decode(data)
        finally:
            browser.terminate()
            browser.wait()


def extent(metrics):
    size = metrics["cssContentSize"]
    return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}


def until_zero(stream):
    message = bytearray()
    while (byte := stream.read(1)) != b"\0":
        if not byte:
            raise RuntimeError("chromium has ended: `chromium --headless=new --no-sandbox about:blank` says why")
        message += byte
    return bytes(message)


if __name__ == "__main__":
    main()
