package egress_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
)

func TestParseTarget_OneSpelling(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"example.com:443":          "example.com:443",
		"EXAMPLE.com.:443":         "example.com:443",
		"bücher.example:443":       "xn--bcher-kva.example:443",
		"XN--BCHER-KVA.example:80": "xn--bcher-kva.example:80",
		"example。com:443":          "example.com:443",
		"１２７.0.0.1:80":             "127.0.0.1:80",
		"a_b.example:1":            "a_b.example:1",
		"127.0.0.1:80":             "127.0.0.1:80",
		"[::1]:80":                 "[::1]:80",
		"[0:0:0:0:0:0:0:1]:80":     "[::1]:80",
		"[::ffff:10.0.0.1]:80":     "10.0.0.1:80",
		"localhost:65535":          "localhost:65535",
	} {
		got, err := egress.ParseTarget(in, 0)
		require.NoError(t, err, in)
		require.Equal(t, want, got.String())
	}
}

func TestParseTarget_Refused(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", ":", ":443", "example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:+80", "example.com:http",
		"user@example.com:443", "user:pass@example.com:443", "example.com@evil.example:443",
		"example.com\x00.evil.example:443", "example.com\x00:443", " example.com:443", "example.com :443", "exa mple.com:443", "example.com\t:443",
		"example.com/path:443", "example.com#:443", "example.com?x:443", "exam%70le.com:443", `example.com\evil:443`,
		"..:443", "example..com:443", "example.com..:443", ".example.com:443",
		"127.1:80", "2130706433:80", "0x7f000001:80", "0x7f.0.0.1:80", "0177.0.0.1:80", "127.0.0.1.:0x50", "1.2.3.4.5:80", "example.0x:80",
		"::1:80", "[::1:80", "::1]:80", "[127.0.0.1]:80", "[fe80::1%eth0]:80", "[]:80", "[[::1]]:80", "[::1]x:80", "x[::1]:80",
		strings.Repeat("a", 64) + ".example:80", strings.Repeat("a.", 127) + "example:80", "a\xff.example:80", "*.example.com:80",
	} {
		got, err := egress.ParseTarget(in, 0)
		require.Error(t, err, "%q became %v", in, got)
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{"example.com:443", "EXAMPLE.com.:443", "[::ffff:1.2.3.4]:80", "１.2.3.4:80", "ß.example:1", "xn--a:1", "0x7f.1:80"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := egress.ParseTarget(in, 80)
		if err != nil {
			return
		}
		again, err := egress.ParseTarget(got.String(), 0)
		require.NoError(t, err, "%q became %q", in, got)
		require.Equal(t, got, again, "%q has two spellings", in)
		require.Equal(t, strings.ToLower(got.Host), got.Host)
		require.NotContains(t, got.Host, "\x00")
		require.False(t, strings.ContainsAny(got.Host, " @/\\%#?*"), "%q became %q", in, got.Host)
		require.False(t, strings.HasSuffix(got.Host, "."))
		require.Equal(t, got.Addr.IsValid(), got.Addr.String() == got.Host)
		require.False(t, got.Addr.Is4In6())
	})
}
