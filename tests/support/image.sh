# Runs a command in an image's files as a container would: read-only root, user 10001, no environment but the image's.
# Usage, as root: unshare --mount --pid --net --fork --kill-child sh image.sh FOLDER COMMAND
set -e
ip link set lo up
root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount -o remount,ro,bind "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o uid=10001,gid=10001,mode=700 tmpfs "$root/var/lib/rankmon"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot --userspec=10001:10001 "$root" env -i PATH=/opt/rankmon/bin:/usr/bin:/bin HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 sh -c "cd /var/lib/rankmon && $*"
