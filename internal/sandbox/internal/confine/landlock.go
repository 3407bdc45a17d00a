//go:build linux

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access is a set of Landlock's rights to files.
type Access uint64

// Sets of rights.
const (
	AccessRead    Access = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	AccessDevices Access = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// AccessChange is everything that changes files or directories; it cannot create devices.
	AccessChange Access = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	accessDeviceNodes Access = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK
	accessAll                = AccessRead | AccessChange | accessDeviceNodes | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// accessFile is what makes sense for something that is no directory.
	accessFile Access = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// Versions of Landlock that brought something that is used here.
const (
	abiRefer    = 2
	abiTruncate = 3
	abiIoctl    = 5
	abiScope    = 6
)

// LandlockABI is the version of Landlock that the kernel has; 0 when it has none.
func LandlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// Scopes reports whether Landlock cuts sandboxes off from abstract sockets and from processes
// outside: Linux 6.12.
func Scopes() bool { return LandlockABI() >= abiScope }

// known leaves out of a the rights that version abi does not know.
func (a Access) known(abi int) Access {
	if abi < abiRefer {
		a &^= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi < abiTruncate {
		a &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi < abiIoctl {
		a &^= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return a
}

// Rule allows access to a file, or to a directory and everything below it. The path has to exist.
type Rule struct {
	Path   string
	Access Access
	// File says that Path is no directory: who makes the calls of a list cannot look.
	File bool
}

// Existing returns the rules whose paths exist, with File as it is.
func Existing(rules []Rule) ([]Rule, error) {
	var there []Rule
	for _, rule := range rules {
		info, err := os.Stat(rule.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("landlock: %w", err)
		}
		rule.File = !info.IsDir()
		there = append(there, rule)
	}
	return there, nil
}

// AddLandlock adds to a list what leaves the calling thread the rights to files that rules give it
// and no others. It takes no_new_privs. Where the kernel can, the thread is also cut off from the
// signals and the abstract sockets of those who are not confined with it, who may have more rights.
func AddLandlock(l *List, rules []Rule) { addLandlock(l, accessAll, rules) }

// AddLandlockChanges is [AddLandlock] for the rights to change files: reading is not touched.
func AddLandlockChanges(l *List, rules []Rule) {
	addLandlock(l, AccessChange|accessDeviceNodes, rules)
}

func addLandlock(l *List, handled Access, rules []Rule) {
	abi := LandlockABI()
	handled = handled.known(abi)
	attr := &unix.LandlockRulesetAttr{Handled_access_fs: uint64(handled)}
	if abi >= abiScope {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	l.Step("Landlock")
	set := l.Do(unix.SYS_LANDLOCK_CREATE_RULESET, unsafe.Pointer(attr), rulesetSize(abi), 0)
	for _, rule := range rules {
		access := rule.Access & handled
		if rule.File {
			access &= accessFile
		}
		if access == 0 {
			continue
		}
		attr := &unix.LandlockPathBeneathAttr{Allowed_access: uint64(access)}
		l.Step("Landlock: " + rule.Path)
		at := l.Do(unix.SYS_OPENAT, unix.AT_FDCWD, rule.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
		l.Store(&attr.Parent_fd)
		l.Do(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH, unsafe.Pointer(attr), 0)
		l.Do(unix.SYS_CLOSE, at)
	}
	l.Step("Landlock")
	l.Do(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0)
	l.Do(unix.SYS_CLOSE, set)
}

// rulesetSize is how much of the attribute a version knows.
func rulesetSize(abi int) uintptr {
	const word = 8
	switch {
	case abi < 4:
		return word // files
	case abi < abiScope:
		return 2 * word // and network
	default:
		return 3 * word // and scopes
	}
}
