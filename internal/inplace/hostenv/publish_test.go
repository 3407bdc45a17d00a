package hostenv_test

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
)

func TestParsePublication(t *testing.T) {
	t.Parallel()
	loopback := netip.MustParseAddr("127.0.0.1")
	for text, want := range map[string]hostenv.Publication{
		"3000":                {Host: loopback, HostPort: 3000, Port: 3000},
		"8080:3000":           {Host: loopback, HostPort: 8080, Port: 3000},
		"0:3000":              {Host: loopback, Port: 3000},
		"localhost:8080:3000": {Host: loopback, HostPort: 8080, Port: 3000},
		"0.0.0.0:8080:3000":   {Host: netip.IPv4Unspecified(), HostPort: 8080, Port: 3000},
		"[::1]:8080:3000":     {Host: netip.IPv6Loopback(), HostPort: 8080, Port: 3000},
	} {
		p, err := hostenv.ParsePublication(text)
		require.NoError(t, err, text)
		require.Equal(t, want, p, text)
	}
	for text, says := range map[string]string{
		"": `PORT is "": must be 1 to 65535`, "0": `PORT is "0"`, "http": `PORT is "http"`, "65536": `PORT is "65536"`, "8080:": `PORT is ""`,
		":3000": `HOSTPORT is "": must be 0 to 65535`, "127.0.0.1:3000": `HOSTPORT is "127.0.0.1"`, "[::1]:3000": `HOSTPORT is "1]"`,
		"host:1:2": `HOST is "host": must be an address`, ":1:2": `HOST is ""`, "1.2.3:1:2": `HOST is "1.2.3"`,
	} {
		_, err := hostenv.ParsePublication(text)
		require.ErrorContains(t, err, says, text)
	}
}

func TestListen_SaysWhatIsTaken(t *testing.T) {
	t.Parallel()
	free, err := hostenv.ParsePublication("0:3000")
	require.NoError(t, err)
	l, err := free.Listen(t.Context())
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, "http://"+l.Addr().String(), hostenv.URL(l))
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	taken, err := hostenv.ParsePublication(port + ":3000")
	require.NoError(t, err)
	require.Equal(t, port, strconv.Itoa(int(taken.HostPort)))
	_, err = taken.Listen(t.Context())
	require.ErrorContains(t, err, "port "+port+" of 127.0.0.1 is taken; choose another one, or 0 for any that is free, as in 0:3000")
}
