//go:build linux && (amd64 || arm64)

package confine

import (
	"maps"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newest is the highest system call number that was looked at. What a newer kernel adds does
// not exist for a sandbox.
const newest = unix.SYS_LISTNS

// Fields of what a filter looks at.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
)

// arg is the offset of the lower half of an argument; both architectures are little-endian.
func arg(n uint32) uint32 { return dataArgs + 8*n }

const (
	retAllow = unix.SECCOMP_RET_ALLOW
	retKill  = unix.SECCOMP_RET_KILL_PROCESS
)

func retErrno(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) } //nolint:gosec // small numbers

// program is a filter as it is written.
type program []unix.SockFilter

func (p *program) load(offset uint32) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset})
}

func (p *program) ret(value uint32) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value})
}

// jump skips yes or no instructions, depending on whether the loaded value compares to k.
func (p *program) jump(op uint16, k uint32, yes, no uint8) {
	*p = append(*p, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | op, Jt: yes, Jf: no, K: k})
}

// returnIf returns value when the loaded value compares to k.
func (p *program) returnIf(op uint16, k, value uint32) {
	p.jump(op, k, 0, 1)
	p.ret(value)
}

// on runs body, which must end in a return, when the loaded number is this one.
func (p *program) on(number uint32, body func(*program)) {
	at := len(*p)
	p.jump(unix.BPF_JEQ, number, 0, 0)
	body(p)
	(*p)[at].Jf = uint8(len(*p) - at - 1) //nolint:gosec // what is done is short
}

// table says what is done for each of some system calls.
type table map[uint32]program

// on runs body, which must end in a return, for one system call.
func (t table) on(number uint32, body func(*program)) {
	var p program
	body(&p)
	t[number] = p
}

// match returns hit for a system call when an argument compares to one of the values, and otherwise
// the other value.
func (t table) match(number, argument uint32, op uint16, values []uint32, hit, otherwise uint32) {
	t.on(number, func(p *program) {
		p.load(arg(argument))
		for _, value := range values {
			p.returnIf(op, value, hit)
		}
		p.ret(otherwise)
	})
}

// deny has system calls fail.
func (t table) deny(errno unix.Errno, numbers ...uint32) {
	for _, number := range numbers {
		t.on(number, func(p *program) { p.ret(retErrno(errno)) })
	}
}

// dispatch does what the table says, and allows all other system calls.
func (p *program) dispatch(t table) {
	for _, number := range slices.Sorted(maps.Keys(t)) {
		p.on(number, func(p *program) { *p = append(*p, t[number]...) })
	}
	p.ret(retAllow)
}

// nativeOnly kills who calls the kernel in the words of another architecture.
func (p *program) nativeOnly() {
	p.load(dataArch)
	p.jump(unix.BPF_JEQ, nativeArch, 1, 0)
	p.ret(retKill)
	p.load(dataNumber)
	if foreignBit != 0 {
		p.returnIf(unix.BPF_JSET, foreignBit, retKill)
	}
}

// sandboxFilter is what every process of a sandbox is under.
var sandboxFilter = sync.OnceValue(newSandboxFilter) //nolint:gochecknoglobals // a constant

func newSandboxFilter() program {
	var p program
	p.nativeOnly()
	p.returnIf(unix.BPF_JGT, newest, retErrno(unix.ENOSYS))
	t := table{}
	t.deny(unix.ENOSYS, unix.SYS_CLONE3) // its flags are out of sight; libraries use clone then
	t.deny(unix.EPERM, denied...)
	t.deny(unix.EPERM, deniedHere...)
	t.noSetID()
	t.keepNoCore()
	t.match(unix.SYS_CLONE, 0, unix.BPF_JSET, []uint32{newNamespaces}, retErrno(unix.EPERM), retAllow)
	t.on(unix.SYS_SOCKET, (*program).usualSocket)
	// The one family that has pairs worth having.
	t.match(unix.SYS_SOCKETPAIR, 0, unix.BPF_JEQ, []uint32{unix.AF_UNIX}, retAllow, retErrno(unix.EAFNOSUPPORT))
	t.on(unix.SYS_SETSOCKOPT, (*program).usualOption)
	t.on(unix.SYS_IOCTL, (*program).usualIoctl)
	// What leaves a device file where something was: Landlock does not see that one is made.
	t.match(unix.SYS_RENAMEAT2, 4, unix.BPF_JSET, []uint32{unix.RENAME_WHITEOUT}, retErrno(unix.EINVAL), retAllow)
	// Huge pages that the host has set aside, which nothing counts for a sandbox: none are left.
	t.match(unix.SYS_MMAP, 3, unix.BPF_JSET, []uint32{unix.MAP_HUGETLB}, retErrno(unix.ENOMEM), retAllow)
	t.match(unix.SYS_MEMFD_CREATE, 1, unix.BPF_JSET, []uint32{unix.MFD_HUGETLB}, retErrno(unix.ENOMEM), retAllow)
	t.match(unix.SYS_SHMGET, 2, unix.BPF_JSET, []uint32{shmHuge}, retErrno(unix.ENOMEM), retAllow)
	p.dispatch(t)
	return p
}

// usualSocket allows the protocols that programs use. For others the kernel loads modules at any
// user's request; and AF_VSOCK, for one, ignores network namespaces.
func (p *program) usualSocket() {
	p.load(arg(0))
	p.returnIf(unix.BPF_JEQ, unix.AF_UNIX, retAllow)
	p.jump(unix.BPF_JEQ, unix.AF_NETLINK, 0, 4)
	p.load(arg(2))
	p.returnIf(unix.BPF_JEQ, unix.NETLINK_ROUTE, retAllow)
	p.ret(retErrno(unix.EPROTONOSUPPORT))
	p.jump(unix.BPF_JEQ, unix.AF_INET, 2, 0)
	p.jump(unix.BPF_JEQ, unix.AF_INET6, 1, 0)
	p.ret(retErrno(unix.EAFNOSUPPORT))
	p.load(arg(2))
	for _, protocol := range []uint32{
		unix.IPPROTO_IP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, unix.IPPROTO_MPTCP,
	} {
		p.returnIf(unix.BPF_JEQ, protocol, retAllow)
	}
	p.ret(retErrno(unix.EPROTONOSUPPORT))
}

// usualOption denies rarely used options of TCP that reach much code of the kernel: upper layer
// protocols, and keys for an algorithm that the caller names, for which the kernel may load a
// module.
func (p *program) usualOption() {
	p.load(arg(1))
	p.jump(unix.BPF_JEQ, unix.IPPROTO_TCP, 1, 0)
	p.ret(retAllow)
	p.load(arg(2))
	for _, option := range []uint32{unix.TCP_ULP, tcpAddKey} {
		p.returnIf(unix.BPF_JEQ, option, retErrno(unix.ENOPROTOOPT))
	}
	p.ret(retAllow)
}

// usualIoctl denies input into terminals, and requests for which the kernel would load modules:
// other drivers of terminals, bridges and VLANs. Requests of btrfs fail as unknown, except clones:
// others create directories that ordinary calls cannot remove.
func (p *program) usualIoctl() {
	p.load(arg(1))
	for _, request := range []uint32{
		unix.TIOCSTI, tiocLinux, unix.TIOCSETD,
		unix.SIOCGIFBR, unix.SIOCSIFBR, unix.SIOCBRADDBR, unix.SIOCBRDELBR, unix.SIOCGIFVLAN, unix.SIOCSIFVLAN,
	} {
		p.returnIf(unix.BPF_JEQ, request, retErrno(unix.EPERM))
	}
	for _, request := range []uint32{unix.FICLONE, unix.FICLONERANGE, unix.FIDEDUPERANGE} {
		p.returnIf(unix.BPF_JEQ, request, retAllow)
	}
	*p = append(*p, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: requestKind})
	p.returnIf(unix.BPF_JEQ, btrfsRequest<<8, retErrno(unix.ENOTTY))
	p.ret(retAllow)
}

// keepNoCore has changes of that limit do nothing. They succeed, for those who want to be
// sure that there are no core files.
func (t table) keepNoCore() {
	const done = unix.SECCOMP_RET_ERRNO // with the number 0
	t.match(unix.SYS_SETRLIMIT, 0, unix.BPF_JEQ, []uint32{unix.RLIMIT_CORE}, done, retAllow)
	t.on(unix.SYS_PRLIMIT64, func(p *program) {
		p.load(arg(1))
		p.jump(unix.BPF_JEQ, unix.RLIMIT_CORE, 1, 0)
		p.ret(retAllow)
		for _, half := range []uint32{arg(2), arg(2) + 4} { // of the pointer to the new limit, if there is one
			p.load(half)
			p.jump(unix.BPF_JEQ, 0, 1, 0)
			p.ret(done)
		}
		p.ret(retAllow)
	})
}

const (
	tiocLinux     = 0x541c
	tcpAddKey     = 38     // TCP_AO_ADD_KEY
	shmHuge       = 0o4000 // SHM_HUGETLB
	btrfsRequest  = 0x94
	newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
		unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
)

// readOnlyFilter denies the changes to files that Landlock does not know.
func readOnlyFilter() program {
	var p program
	p.nativeOnly()
	t := table{}
	t.deny(unix.EROFS, changes...)
	t.deny(unix.EROFS, changesHere...)
	t.on(unix.SYS_IOCTL, (*program).readOnlyIoctl)
	p.dispatch(t)
	return p
}

// fileRequests are the kinds of requests by which file systems change files: those of all file
// systems, and of ext4, XFS and btrfs. Most need only a descriptor for reading.
var fileRequests = []uint32{'f', 'v', 'X', btrfsRequest} //nolint:gochecknoglobals // a constant

// harmlessRequests are those among them that programs make and that change nothing, or ask
// for a descriptor to write by.
var harmlessRequests = []uint32{ //nolint:gochecknoglobals // a constant
	unix.FS_IOC_GETFLAGS, fsIocGetVersion, fsIocFiemap, fsIocGetXattr, unix.FICLONE, unix.FICLONERANGE, unix.FIDEDUPERANGE,
}

const (
	fsIocGetVersion = 0x80087601
	fsIocFiemap     = 0xc020660b
	fsIocGetXattr   = 0x801c581f
	requestKind     = 0xff00 // where a request has its kind
)

// readOnlyIoctl denies the requests by which files are changed.
func (p *program) readOnlyIoctl() {
	p.load(arg(1))
	for _, request := range harmlessRequests {
		p.returnIf(unix.BPF_JEQ, request, retAllow)
	}
	*p = append(*p, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: requestKind})
	for _, kind := range fileRequests {
		p.returnIf(unix.BPF_JEQ, kind<<8, retErrno(unix.EROFS))
	}
	p.ret(retAllow)
}

// add adds to a list what puts the calling thread under the filter.
func (p program) add(l *List) { p.addTo(l, 0) }

// addTo is add with flags, by which it may be all threads.
func (p program) addTo(l *List, flags int) {
	fprog := &unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]} //nolint:gosec // some hundred
	l.Do(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, unsafe.Pointer(fprog))
}

// noUnixFilter denies sockets that could reach those of others by a name. Pairs of sockets can be
// made still.
func noUnixFilter() program {
	var p program
	p.load(dataNumber)
	t := table{}
	t.match(unix.SYS_SOCKET, 0, unix.BPF_JEQ, []uint32{unix.AF_UNIX}, retErrno(unix.EACCES), retAllow)
	p.dispatch(t)
	return p
}

// AddNoUnix adds to a list what keeps the calling thread from Unix sockets, whose abstract names
// are those of a network. It takes [AddSeccomp], and is for who is in the host's network under a
// Landlock that does not cut them off, see [Scopes].
func AddNoUnix(l *List) { noUnixFilter().add(l) }

// AddSeccomp adds to a list what puts the calling thread under the filter of sandboxes. It takes
// no_new_privs.
func AddSeccomp(l *List) error {
	sandboxFilter().add(l)
	return nil
}

// AddReadOnly adds to a list what denies the calling thread the changes of files that
// [AddLandlockChanges] leaves: of modes, owners, times and attributes. It takes [AddSeccomp].
func AddReadOnly(l *List) { readOnlyFilter().add(l) }
