"""The sections in their order. In: names of sections, or none for all. Out: one line a check, the closing line, the exit code."""

import sys

import change
import checks
import envelope
import ground
import life
import paging
import postgres
import rules
import secrets_scope
import wire

SECTIONS = {
    "envelope": envelope.run,
    "rules": rules.run,
    "paging": paging.run,
    "secrets": secrets_scope.run,
    "change": change.run,
    "life": life.run,
    "postgres": postgres.run,
}


def main():
    wanted = sys.argv[1:] or list(SECTIONS)
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        sys.exit(f"there is no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    checks.section("ground", ground.lay)
    for name in wanted:
        checks.section(name, SECTIONS[name])
    checks.section("clearing", lambda: checks.equal("all that was made can be deleted", ground.clear(), []))
    checks.check(
        f"each of {wire.answers} raw answers is JSON with exactly the members, codes and statuses of its route",
        not wire.breaches,
        f"{len(wire.breaches)} are not:\n  " + "\n  ".join(wire.breaches[:20]),
    )
    sys.exit(checks.close())


if __name__ == "__main__":
    main()
