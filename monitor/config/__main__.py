"""Prints what is generated from the schema.

`python -m monitor.config > config/rankmon.schema.json`, `python -m monitor.config --reference > config/README.md`.
"""

import json
import sys

from monitor.config.reference import reference
from monitor.config.schema import json_schema

if __name__ == "__main__":
    sys.stdout.write(reference() if "--reference" in sys.argv else json.dumps(json_schema(), indent=2) + "\n")
