"""`python -m monitor.config > config/rankmon.schema.json`: prints the schema of the configuration."""

import json
import sys

from monitor.config.schema import json_schema

if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
