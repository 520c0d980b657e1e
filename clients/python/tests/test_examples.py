"""Runs the programs of docs/guides/python.md and nats.md: the files of examples, those with Flask and FastAPI where these are installed.

The one with nats-py runs with the stand-in of tests/stand_in where that is not installed.
"""

import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from support import client, in_state, needs_node, until

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIRED = os.environ.get("BELFRY_CLIENTS") == "required"


def command(python, args, **env):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **env}
    return subprocess.Popen([python, *args], cwd=ROOT / "examples", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def python_with(*modules):
    """Returns a Python that has the modules: this one, or Debian's, for which apt installs them."""
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run([python, "-c", "import " + ", ".join(modules)], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    if REQUIRED:
        raise AssertionError(f"BELFRY_CLIENTS=required, and no Python has {' and '.join(modules)}")
    raise unittest.SkipTest(f"not run: no Python has {' and '.join(modules)}")


@needs_node
class ExamplesTest(unittest.TestCase):
    def start(self, python, args, **env):
        child = command(python, args, **env)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def run_example(self, name):
        child = self.start(sys.executable, [name])
        printed = child.stdout.read()
        self.assertEqual(child.wait(), 0, printed)
        return printed.strip()

    def test_programs(self):
        self.assertRegex(self.run_example("add.py"), r"^timer [0-9a-v]{26} is due at 20")
        with ThreadPoolExecutor() as pool:
            change = lambda: (self.run_example("find.py"), self.run_example("change.py"))  # noqa: E731
            found, batch, schedule, dead = pool.submit(change), *(pool.submit(self.run_example, name) for name in ("batch.py", "schedule.py", "dead.py"))
        self.assertRegex(found.result()[0], r"^order-17 20")
        self.assertEqual(found.result()[1], "paid in time")
        self.assertEqual(batch.result(), "3 stored")
        schedule.result()
        self.assertRegex(dead.result(), r"\d+ replayed$")

    def test_stream(self):
        child = self.start(sys.executable, ["stream.py"])
        self.assertEqual(child.stdout.readline(), "open\n")
        client.add(in_="0s", id="streamed", svc="orders", source="/python/examples")
        for line in child.stdout:
            if line.startswith("streamed fired "):
                return
        self.fail("the example has ended")

    def check_server(self, python, args):
        """The server calls its port by http://127.0.0.1:<port>, or as the port that it listens on."""
        child = self.start(python, args, PORT="0")
        printed, port = "", None
        while port is None:
            line = child.stdout.readline()
            self.assertTrue(line, printed)
            printed += line
            port = re.search(r"(?:listening on port |http://127\.0\.0\.1:)(\d+)", line)
        url = f"http://127.0.0.1:{port[1]}/expired"
        timer = client.add(in_="0s", svc="signed", callback=url, data={"order": 17})["timer"]
        self.assertEqual(in_state(timer, "success")["outcome"]["response"], '{"expired": true}')
        in_state(client.add(in_="0s", svc="signed", callback=url, data={"order": 18})["timer"], "fail")
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, data=b"{}")
        with caught.exception as answer:
            self.assertEqual(answer.code, 401)

    test_http_server = functools.partialmethod(check_server, sys.executable, ["http_server.py"])
    test_wsgi = functools.partialmethod(check_server, sys.executable, ["wsgi.py"])

    def test_flask(self):
        self.check_server(python_with("flask"), ["flask_app.py"])

    def test_fastapi(self):
        python = python_with("fastapi", "uvicorn")
        self.check_server(python, ["-m", "uvicorn", "--port", "0", "fastapi_app:app"])

    @unittest.skipUnless(os.environ.get("NATS_URL"), "NATS_URL names no server")
    def test_nats(self):
        path = [str(ROOT)]
        if importlib.util.find_spec("nats") is None:
            path.append(str(ROOT / "tests" / "stand_in"))
        child = self.start(sys.executable, ["nats_callbacks.py"], PYTHONPATH=os.pathsep.join(path))
        self.assertEqual(child.stdout.readline(), "serving callbacks.orders.expire\n")
        add = lambda order: client.add(in_="0s", svc="nats", flow=f"nats-python-{order}", callback="nats:callbacks.orders.expire", data={"order": order})["timer"]  # noqa: E731
        self.assertEqual(in_state(add(17), "success")["outcome"]["response"], '{"expired": true}')
        for order, error in ((18, "there is no order 18"), (19, "the order is being changed")):
            timer = add(order)
            found = until(error, lambda: (now := client.get(timer)).get("outcome", {}).get("error") and now)  # noqa: B023
            self.assertIn(error, found["outcome"]["error"])
            self.assertEqual(found["maxattempts"] - 36, found["attempts"] if order == 19 else 0)  # "not now" uses no attempt
        child.terminate()
        self.assertEqual(child.wait(), 0, child.stdout.read())


if __name__ == "__main__":
    unittest.main()
