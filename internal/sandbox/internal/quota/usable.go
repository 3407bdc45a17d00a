//go:build linux

package quota

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// What helps where there are no quotas.
const (
	adviceOther = "put the data directory (--data) on ext4 or XFS mounted with prjquota; a file will do: " +
		"truncate -s 50G IMAGE; mkfs.ext4 -O quota,project -E quotatype=prjquota IMAGE; mount -o loop,prjquota IMAGE DIR"
	adviceMount = "mount it with the option prjquota (ext4: after tune2fs -O quota,project -Q prjquota on the device, unmounted; " +
		"the root file system: rootflags=prjquota at boot), with a kernel that can (CONFIG_QFMT_V2, CONFIG_XFS_QUOTA)"
	adviceKernel = "use Linux 5.14 or later"
)

// Check tries quotas in a directory, and leaves nothing there. An error wraps an
// [*isolation.UnusableError].
func Check(dir string) (err error) {
	top, err := os.Open(dir)
	if err != nil {
		return &isolation.UnusableError{What: isolation.Quotas, Found: "the directory cannot be opened", Err: err}
	}
	defer top.Close()
	if err := usable(top); err != nil {
		return err
	}
	try, err := os.MkdirTemp(dir, "quota-")
	if err != nil {
		return refused(top, err)
	}
	defer func() { err = errors.Join(err, os.Remove(try)) }()
	p, err := Open(try)
	if _, is := errors.AsType[*isolation.UnusableError](err); err != nil && !is {
		err = refused(top, err)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(p.Limit(Limits{Bytes: 1 << 20, Files: 1}), p.Close()); err != nil {
		return refused(top, err)
	}
	return nil
}

// usable says why the file system of a directory has no quotas for this process.
func usable(dir *os.File) error {
	if !known() {
		return &isolation.UnusableError{What: isolation.Quotas, Found: "the kernel has no quotactl_fd", Advice: adviceKernel}
	}
	switch on, err := enforces(dir); {
	case err != nil || !on:
		return missing(dir, err)
	case os.Geteuid() != 0:
		return &isolation.UnusableError{What: isolation.Quotas, Found: "only root may set quotas"}
	}
	sweep(dir)
	return nil
}

// missing says that a file system has no quotas, or does not hold to them.
func missing(dir *os.File, err error) error {
	u := &isolation.UnusableError{What: isolation.Quotas, Found: dir.Name() + " is on a file system without project quotas", Advice: adviceOther}
	var fs unix.Statfs_t
	if unix.Fstatfs(int(dir.Fd()), &fs) != nil {
		u.Err = err
		return u
	}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC:
		u.Found, u.Advice = fmt.Sprintf("the file system of %s is mounted without project quotas", dir.Name()), adviceMount
	default:
	}
	return u
}

// refused is an error of the system about quotas that hold.
func refused(dir *os.File, err error) error {
	return &isolation.UnusableError{What: isolation.Quotas, Found: "the system does not let this process set quotas for " + dir.Name(), Advice: "run the worker as root of the host, not of a container", Err: err}
}
