//go:build linux && (amd64 || arm64)

package confine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// syscallArgs is a system call as a filter sees it.
type syscallArgs struct {
	arch, number uint32
	args         [6]uint64
}

// field is what a filter loads.
func (c syscallArgs) field(t *testing.T, offset uint32) uint32 {
	t.Helper()
	switch offset {
	case dataNumber:
		return c.number
	case dataArch:
		return c.arch
	}
	require.Zero(t, offset%4)
	require.GreaterOrEqual(t, offset, uint32(dataArgs))
	value := c.args[(offset-dataArgs)/8]
	if offset%8 != 0 {
		value >>= 32
	}
	return uint32(value)
}

// verdict runs a filter as the kernel does.
func (p program) verdict(t *testing.T, c syscallArgs) (verdict uint32) {
	t.Helper()
	var loaded uint32
	for at := 0; ; at++ {
		switch i := p[at]; i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			loaded = c.field(t, i.K)
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			loaded &= i.K
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		default:
			is, known := map[uint16]bool{
				unix.BPF_JEQ: loaded == i.K, unix.BPF_JGT: loaded > i.K, unix.BPF_JSET: loaded&i.K != 0,
			}[i.Code&^(unix.BPF_JMP|unix.BPF_K)]
			require.True(t, known, "instruction %#v", i)
			if is {
				at += int(i.Jt)
			} else {
				at += int(i.Jf)
			}
		}
	}
}

// TestFilter_EveryNumber: what is denied is denied, what looks at arguments is asked about them
// elsewhere, and all else is allowed.
func TestFilter_EveryNumber(t *testing.T) {
	t.Parallel()
	looks := []uint32{
		unix.SYS_CLONE, unix.SYS_SOCKET, unix.SYS_IOCTL, unix.SYS_SETRLIMIT, unix.SYS_PRLIMIT64,
		unix.SYS_SOCKETPAIR, unix.SYS_MMAP, unix.SYS_MEMFD_CREATE, unix.SYS_SHMGET,
		unix.SYS_SETSOCKOPT, unix.SYS_RENAMEAT2,
	}
	for _, c := range slices.Concat(modeCalls, modeCallsHere) {
		looks = append(looks, c.number)
	}
	for number := range uint32(newest + 100) {
		want := uint32(retAllow)
		switch {
		case number > newest, number == unix.SYS_CLONE3, number == unix.SYS_OPENAT2:
			want = retErrno(unix.ENOSYS)
		case slices.Contains(denied, number), slices.Contains(deniedHere, number):
			want = retErrno(unix.EPERM)
		case slices.Contains(looks, number):
			continue
		}
		got := sandboxFilter().verdict(t, syscallArgs{arch: nativeArch, number: number})
		require.Equal(t, want, got, "system call %d", number)
		want = retAllow
		if slices.Contains(changes, number) || slices.Contains(changesHere, number) {
			want = retErrno(unix.EROFS)
		}
		if number != unix.SYS_IOCTL {
			got = readOnlyFilter().verdict(t, syscallArgs{arch: nativeArch, number: number})
			require.Equal(t, want, got, "system call %d of a read-only command", number)
		}
	}
}

// TestFilter_Arguments: calls that are denied for what they are asked.
func TestFilter_Arguments(t *testing.T) {
	t.Parallel()
	allow, denied := uint32(retAllow), retErrno(unix.EPERM)
	for name, test := range map[string]struct {
		number uint32
		args   [6]uint64
		want   uint32
	}{
		"a process":                   {unix.SYS_CLONE, [6]uint64{unix.CLONE_VM | unix.CLONE_VFORK}, allow},
		"a user namespace":            {unix.SYS_CLONE, [6]uint64{unix.CLONE_VM | unix.CLONE_NEWUSER}, denied},
		"a socket":                    {unix.SYS_SOCKET, [6]uint64{unix.AF_INET6}, allow},
		"AF_VSOCK":                    {unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK}, retErrno(unix.EAFNOSUPPORT)},
		"UDP":                         {unix.SYS_SOCKET, [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, allow},
		"SCTP":                        {unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, retErrno(unix.EPROTONOSUPPORT)},
		"a Unix socket":               {unix.SYS_SOCKET, [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM, 1}, allow},
		"addresses":                   {unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, allow},
		"another netlink":             {unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC}, retErrno(unix.EPROTONOSUPPORT)},
		"a pair":                      {unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, allow},
		"a pair of AF_TIPC":           {unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_TIPC, unix.SOCK_STREAM}, retErrno(unix.EAFNOSUPPORT)},
		"memory":                      {unix.SYS_MMAP, [6]uint64{0, 1 << 30, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE}, allow},
		"huge pages":                  {unix.SYS_MMAP, [6]uint64{0, 1 << 30, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB}, retErrno(unix.ENOMEM)},
		"a file of huge pages":        {unix.SYS_MEMFD_CREATE, [6]uint64{0, unix.MFD_CLOEXEC | unix.MFD_HUGETLB}, retErrno(unix.ENOMEM)},
		"shared memory":               {unix.SYS_SHMGET, [6]uint64{1, 1 << 20, 0o1600}, allow},
		"shared memory, huge pages":   {unix.SYS_SHMGET, [6]uint64{1, 1 << 21, 0o5600}, retErrno(unix.ENOMEM)},
		"a driver of terminals":       {unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSETD}, denied},
		"bridges":                     {unix.SYS_IOCTL, [6]uint64{0, unix.SIOCGIFBR}, denied},
		"another VLAN":                {unix.SYS_IOCTL, [6]uint64{0, unix.SIOCSIFVLAN}, denied},
		"an interface":                {unix.SYS_IOCTL, [6]uint64{0, unix.SIOCGIFFLAGS}, allow},
		"a protocol on top of TCP":    {unix.SYS_SETSOCKOPT, [6]uint64{0, unix.IPPROTO_TCP, unix.TCP_ULP}, retErrno(unix.ENOPROTOOPT)},
		"an algorithm for TCP":        {unix.SYS_SETSOCKOPT, [6]uint64{0, unix.IPPROTO_TCP, tcpAddKey}, retErrno(unix.ENOPROTOOPT)},
		"an option of TCP":            {unix.SYS_SETSOCKOPT, [6]uint64{0, unix.IPPROTO_TCP, unix.TCP_NODELAY}, allow},
		"an option of sockets":        {unix.SYS_SETSOCKOPT, [6]uint64{0, unix.SOL_SOCKET, unix.TCP_ULP}, allow},
		"an exchange":                 {unix.SYS_RENAMEAT2, [6]uint64{0, 0, 0, 0, unix.RENAME_EXCHANGE}, allow},
		"a device for what was there": {unix.SYS_RENAMEAT2, [6]uint64{0, 0, 0, 0, unix.RENAME_WHITEOUT}, retErrno(unix.EINVAL)},
		"a clone":                     {unix.SYS_IOCTL, [6]uint64{0, unix.FICLONE}, allow},
		"attributes":                  {unix.SYS_IOCTL, [6]uint64{0, unix.FS_IOC_GETFLAGS}, allow},
		"a subvolume of btrfs":        {unix.SYS_IOCTL, [6]uint64{0, 0x5000940e}, retErrno(unix.ENOTTY)},
		"a request":                   {unix.SYS_IOCTL, [6]uint64{0, unix.TCGETS}, allow},
		"TIOCSTI":                     {unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSTI}, denied},
		"TIOCSTI with more bits":      {unix.SYS_IOCTL, [6]uint64{0, 1<<40 | unix.TIOCSTI}, denied},
		"a mode":                      {unix.SYS_FCHMOD, [6]uint64{0, 0o777}, allow},
		"a set-user-ID mode":          {unix.SYS_FCHMOD, [6]uint64{0, 0o4777}, denied},
		"a mode that means nothing":   {unix.SYS_OPENAT, [6]uint64{0, 0, unix.O_RDWR, 0o4777}, allow},
		"a set-user-ID file":          {unix.SYS_OPENAT, [6]uint64{0, 0, unix.O_RDWR | unix.O_CREAT, 0o4777}, denied},
		"a set-group-ID file, for /x": {unix.SYS_MKNODAT, [6]uint64{0, 0, unix.S_IFREG | 0o2755}, denied},
		"core files":                  {unix.SYS_SETRLIMIT, [6]uint64{unix.RLIMIT_CORE, 1}, unix.SECCOMP_RET_ERRNO},
		"open files":                  {unix.SYS_SETRLIMIT, [6]uint64{unix.RLIMIT_NOFILE, 1}, allow},
		"core files of another":       {unix.SYS_PRLIMIT64, [6]uint64{5, unix.RLIMIT_CORE, 1 << 40}, unix.SECCOMP_RET_ERRNO},
		"what core files there are":   {unix.SYS_PRLIMIT64, [6]uint64{5, unix.RLIMIT_CORE, 0, 1}, allow},
	} {
		got := sandboxFilter().verdict(t, syscallArgs{arch: nativeArch, number: test.number, args: test.args})
		require.Equal(t, test.want, got, name)
	}
	foreign := sandboxFilter().verdict(t, syscallArgs{arch: nativeArch + 1, number: unix.SYS_GETPID})
	require.Equal(t, uint32(retKill), foreign)
}

// TestFilter_NoUnix: nothing but named Unix sockets is denied.
func TestFilter_NoUnix(t *testing.T) {
	t.Parallel()
	for number := range uint32(newest) {
		for _, family := range []uint64{unix.AF_UNIX, unix.AF_INET, 1<<40 | unix.AF_UNIX} {
			want := uint32(retAllow)
			if number == unix.SYS_SOCKET && uint32(family) == unix.AF_UNIX {
				want = retErrno(unix.EACCES)
			}
			got := noUnixFilter().verdict(t, syscallArgs{arch: nativeArch, number: number, args: [6]uint64{family}})
			require.Equal(t, want, got, "system call %d, family %d", number, family)
		}
	}
}

// TestFilter_Untouchable: processes with the first ids are left alone, whoever they are named
// among.
func TestFilter_Untouchable(t *testing.T) {
	t.Parallel()
	const last = 12
	allow, denied := uint32(retAllow), retErrno(unix.EPERM)
	aim := map[uint32]bool{}
	for _, aimed := range aimed() {
		aim[aimed.number] = true
		for id, want := range map[uint64]uint32{0: allow, 1: denied, last: denied, 1<<40 | 1: denied, last + 1: allow, 4 << 20: allow} {
			c := syscallArgs{arch: nativeArch, number: aimed.number}
			c.args[aimed.at] = id
			got := untouchableFilter(last).verdict(t, c)
			require.Equal(t, want, got, "system call %d at %d", aimed.number, id)
		}
		if aimed.everybody != 0 {
			got := untouchableFilter(last).verdict(t, syscallArgs{arch: nativeArch, number: aimed.number, args: [6]uint64{uint64(aimed.everybody), 1000}})
			require.Equal(t, denied, got)
		}
	}
	for number := range uint32(newest) {
		if !aim[number] {
			got := untouchableFilter(last).verdict(t, syscallArgs{arch: nativeArch, number: number, args: [6]uint64{1, 1, 1}})
			require.Equal(t, allow, got)
		}
	}
}
