#!/bin/sh
# Runs any rankmon command as the service's user, with its store, its settings and all its passwords.
# Install as /usr/local/sbin/rankmon, see ../README.md; run it as root, e.g. `rankmon backfill --from 2026-10-01`.
set -eu
set -- /opt/rankmon/bin/rankmon "$@"
for secret in /etc/rankmon/secrets/*; do
    if [ -f "$secret" ]; then
        set -- -p "LoadCredential=${secret##*/}:$secret" "$@"
    fi
done
exec systemd-run --quiet --collect --wait --pty --pipe \
    -p DynamicUser=yes -p User=rankmon -p StateDirectory=rankmon -p StateDirectoryMode=0700 -p UMask=0077 \
    -p WorkingDirectory=/var/lib/rankmon -p EnvironmentFile=-/etc/rankmon/environment \
    -E RANKMON_CONFIG=/etc/rankmon/rankmon.yaml -E RANKMON_LISTEN=127.0.0.1:9184 -E PYTHONDONTWRITEBYTECODE=1 \
    "$@"
