package natsio

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// The oldest servers with what the laws rest on. One before 2.11 takes a call as its lane's ready
// message although others wait before it, because it does not know that condition.
const oldestMajor, oldestMinor = 2, 12

// ErrServer is wrapped by errors about a server that a fleet cannot use.
var ErrServer = errors.New("the NATS server cannot have a fleet")

// checkServer refuses servers that are too old. One that does not say its version as usual is
// taken.
func checkServer(nc *nats.Conn) error {
	var major, minor int
	if n, _ := fmt.Sscanf(nc.ConnectedServerVersion(), "%d.%d", &major, &minor); n < 2 {
		return nil
	}
	if major > oldestMajor || major == oldestMajor && minor >= oldestMinor {
		return nil
	}
	return fmt.Errorf("%w: it is version %s, must be %d.%d or later", ErrServer, nc.ConnectedServerVersion(), oldestMajor, oldestMinor)
}
