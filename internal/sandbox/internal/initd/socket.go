//go:build linux

package initd

import (
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
)

// socket gives the worker a socket of the sandbox's network, which the worker connects: this
// process waits for nobody, and needs no thread for it.
func (s *server) socket(m *wire.Message) {
	var request wire.Socket
	if err := m.Decode(&request); err != nil {
		reply(s.conn, m, struct{}{}, err)
		return
	}
	fd, err := unix.Socket(request.Family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		reply(s.conn, m, struct{}{}, err)
		return
	}
	defer unix.Close(fd)
	if err := s.conn.Send(m.ID, m.Kind, nil, fd); err != nil { // too many are on their way
		reply(s.conn, m, struct{}{}, err)
	}
}
