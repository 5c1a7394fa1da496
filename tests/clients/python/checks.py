"""Counting. In: names and verdicts of checks. Out: one line each, and the closing line with the numbers."""

import sys
import time
import traceback

passed = 0
failed = 0


def check(name, good, detail=""):
    """Records one check. `detail` is shown when it failed. Answers the verdict."""
    global passed, failed
    if good:
        passed += 1
        print(f"ok    {name}", flush=True)
    else:
        failed += 1
        print(f"FAIL  {name}: {detail}", flush=True)
    return bool(good)


def equal(name, found, wanted):
    return check(name, found == wanted, f"found {found!r}, wanted {wanted!r}")


def contains(name, text, *parts):
    absent = [part for part in parts if part not in (text or "")]
    return check(name, not absent, f"{text!r} lacks {absent!r}")


def section(title, run):
    """Runs a section; what it throws is a failed check, and the next section still runs."""
    print(f"----- {title}", flush=True)
    try:
        run()
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        check(f"{title} runs to its end", False, f"{type(error).__name__}: {error}")


def until(seconds, what):
    """Asks until the answer is true; answers the last answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = what()
        if answer or time.monotonic() > deadline:
            return answer
        time.sleep(0.1)


def close():
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0
