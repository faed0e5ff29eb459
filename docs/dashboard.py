"""Makes docs/dashboard.webp: the live page of a server that is asked texts of many lengths, seen in headless Chromium.

    cargo build --release && cargo xtask model
    python3 docs/dashboard.py target/release/turbo models/minilm

Needs Python 3.10 and Debian's `chromium`. What is on the picture is what that server measured of itself.
"""

import argparse
import base64
import json
import os
import random
import re
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

WORDS = "the river runs past seven old mills and nobody in town remembers who built them or why".split()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("turbo")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=int, default=150, help="how long the server is asked")
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second, in the mean")
    parser.add_argument("--flags", nargs="*", default=["--batching=naive", "--max-batch-tokens=2048"],
                        help="of the server: by default all that waits is a batch, as a GPU would have it, so that packing is seen")
    parser.add_argument("--scheme", choices=["light", "dark"], default="dark")
    parser.add_argument("--size", default="1320x1130")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "dashboard.webp"))
    arguments = parser.parse_args()
    command = [arguments.turbo, "serve", "--hostname=127.0.0.1", "--port=0", "--model-id", arguments.model,
               *arguments.flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", server.stdout.readline())[0]
        load(url, arguments.seconds, arguments.rate)
        width, height = map(int, arguments.size.split("x"))
        picture = photograph(url + "/dashboard", width, height, arguments.scheme)
        with open(arguments.out, "wb") as file:
            file.write(picture)
        print(f"{arguments.out}: {len(picture)} bytes")
    finally:
        server.terminate()
        server.wait()


def load(url, seconds, rate):
    """Asks as strangers do: at random times, whether or not what came before is answered, at a rate that rises and falls."""
    chance, end = random.Random(1), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        inputs = [text(chance) for _ in range(chance.choice([1, 1, 2, 4, 8, 16]))]
        threading.Thread(target=ask, args=(url, inputs), daemon=True).start()
        busier = 0.4 + 1.2 * abs(((left / 45) % 2) - 1)
        time.sleep(chance.expovariate(rate * busier))


def text(chance):
    """A text of a few words, or now and then of some dozens; one in ten is a text that is asked often."""
    words = min(180, 2 + int(chance.lognormvariate(2.4, 0.9)))
    if chance.random() < 0.1:
        chance = random.Random(words % 5)
    return " ".join(chance.choices(WORDS, k=words))


def ask(url, inputs):
    body = json.dumps({"inputs": inputs}).encode()
    try:
        urllib.request.urlopen(urllib.request.Request(url + "/embed", body, {"content-type": "application/json"})).read()
    except urllib.error.HTTPError as error:
        if error.code != 429:  # an honest word to those who come when all places are taken
            raise


def photograph(url, width, height, scheme):
    """Bytes of a WebP. Chromium's tools protocol goes over descriptors 3 and 4, a zero byte behind each message."""
    with tempfile.TemporaryDirectory() as profile:
        chromium = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
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
            return answer["result"]

        try:
            target = call("Target.createTarget", url="about:blank")["targetId"]
            session = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            call("Emulation.setDeviceMetricsOverride", session, width=width, height=height, deviceScaleFactor=1.5, mobile=False)
            call("Emulation.setEmulatedMedia", session, features=[
                {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}])
            call("Page.navigate", session, url=url)
            time.sleep(4)
            data = call("Page.captureScreenshot", session, format="webp", quality=86)["data"]
            return base64.b64decode(data)
        finally:
            browser.terminate()
            browser.wait()


def until_zero(stream):
    message = b""
    while (byte := stream.read(1)) != b"\0":
        message += byte
    return message


if __name__ == "__main__":
    main()
