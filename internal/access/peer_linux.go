package access

import (
	"net"
	"net/http"

	"github.com/prometheus/procfs"
)

// KnowsUsers says that this system says whose a connection is.
const KnowsUsers = true

// established is the state of a connection whose process is there: of others the system says that
// they are of the superuser.
const established = 1

// UserOf returns the user of this machine whose process has sent a request over TCP. It is not
// known of other machines, and of a process that has closed its side.
func UserOf(r *http.Request) (user uint64, known bool) {
	to, is := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	from, err := net.ResolveTCPAddr("tcp", r.RemoteAddr)
	if !is || err != nil {
		return 0, false
	}
	peer, _ := r.Context().Value(peerKey{}).(*peer)
	if peer != nil {
		peer.mu.Lock()
		defer peer.mu.Unlock()
		if peer.known {
			return peer.user, true
		}
	}
	system, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, false
	}
	old, _ := system.NetTCP()  //nolint:staticcheck // its advice is another library; a table that cannot be read is empty
	all, _ := system.NetTCP6() //nolint:staticcheck // see above
	for _, c := range append(old, all...) {
		if c.LocalAddr.Equal(from.IP) && c.LocalPort == uint64(from.Port) && c.RemAddr.Equal(to.IP) && c.RemPort == uint64(to.Port) && c.St == established { //nolint:gosec // a port
			if peer != nil {
				peer.user, peer.known = c.UID, true
			}
			return c.UID, true
		}
	}
	return 0, false
}
