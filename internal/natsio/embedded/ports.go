package embedded

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePorts finds ports of 127.0.0.1 that nobody listens on, below those that connections get by
// themselves. Somebody may take one before it is used.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	const lowest, highest = 10_000, 32_000
	ports := make([]int, 0, n)
	for range 100 * n {
		port := lowest + rand.IntN(highest-lowest) //nolint:gosec // not a secret
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer func() { _ = listener.Close() }() // all are held until all are found
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no ports of 127.0.0.1 are free")
}
