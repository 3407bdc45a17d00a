package access

import (
	"net"
	"net/http"
	"os"

	"github.com/prometheus/procfs"
)

// OfOtherUser reports whether a process of another user of this machine has sent a request over
// TCP. It is false for the superuser, and where the system does not say whose a connection is.
func OfOtherUser(r *http.Request) bool {
	to, is := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	from, err := net.ResolveTCPAddr("tcp", r.RemoteAddr)
	if !is || err != nil {
		return false
	}
	system, err := procfs.NewDefaultFS()
	if err != nil {
		return false
	}
	old, _ := system.NetTCP()  //nolint:staticcheck // its advice is another library; a table that cannot be read is empty
	all, _ := system.NetTCP6() //nolint:staticcheck // see above
	for _, c := range append(old, all...) {
		if c.LocalAddr.Equal(from.IP) && c.LocalPort == uint64(from.Port) && c.RemAddr.Equal(to.IP) && c.RemPort == uint64(to.Port) { //nolint:gosec // a port
			return c.UID != 0 && c.UID != uint64(os.Getuid()) //nolint:gosec // a user
		}
	}
	return false
}
