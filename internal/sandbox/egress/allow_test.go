package egress_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
)

func TestAllow_MatchesWhatIsListed(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ list, yes, no string }{
		"nothing":         {"", "", "example.com:443 127.0.0.1:80"},
		"spaces only":     {"  ", "", "example.com:443"},
		"host":            {"example.com", "example.com:443 example.com:80 EXAMPLE.COM.:443", "example.com:22 www.example.com:443 evilexample.com:443 example.com.evil.example:443"},
		"port":            {"example.com:8443", "example.com:8443", "example.com:443 example.com:80"},
		"default port":    {"example.com:443", "example.com:443", "example.com:80"},
		"every port":      {"example.com:*", "example.com:1 example.com:65535", "a.example.com:1"},
		"suffix":          {"*.example.com", "a.example.com:443 a.b.example.com:80", "example.com:443 evilexample.com:443 a.example.com:22 a.example.com.evil.example:443"},
		"suffix and port": {"*.Example.com.:22", "a.example.com:22", "a.example.com:443"},
		"address":         {"192.0.2.7:5432", "192.0.2.7:5432 [::ffff:192.0.2.7]:5432", "192.0.2.8:5432 192.0.2.7:80"},
		"IPv6 address":    {"[2001:DB8::1]:80,[2001:db8::2]", "[2001:db8::1]:80 [2001:db8::2]:443 [2001:0db8:0::1]:80", "[2001:db8::1]:443 [2001:db8::3]:80"},
		"several":         {" a.example:1 , b.example:2,", "a.example:1 b.example:2", "a.example:2 b.example:1"},
		"international":   {"bücher.example", "xn--bcher-kva.example:80 BÜCHER.example:443", "bucher.example:80"},
		"sets":            {"npm,GitHub,db:5432", "registry.npmjs.org:443 github.com:22 api.github.com:443 db:5432", "npm:443 www.npmjs.org:443 gitlab.com:443 pypi.org:443"},
		"a host as a set": {"npm:443", "npm:443", "registry.npmjs.org:443"},
		"all":             {"ALL", "example.com:1 10.0.0.1:22", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allow, err := egress.ParseAllow(strings.TrimSuffix(test.list, ","))
			require.NoError(t, err)
			require.Equal(t, name == "all", allow.All())
			require.Equal(t, test.yes == "", allow.Empty())
			for text := range strings.FieldsSeq(test.yes) {
				target, err := egress.ParseTarget(text, 0)
				require.NoError(t, err)
				require.True(t, allow.Match(target), text)
			}
			for text := range strings.FieldsSeq(test.no) {
				target, err := egress.ParseTarget(text, 0)
				require.NoError(t, err)
				require.False(t, allow.Match(target), text)
			}
		})
	}
}

func TestParseAllow_NamesEveryFault(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"*":                        `for the whole network write "all"`,
		"all,example.com":          "stands alone",
		"example.com,":             `entry ""`,
		"*.":                       "a suffix is wanted",
		"*.1.2.3.4":                "an address has no suffix",
		"a.*.example":              "only letters",
		"example.com:99999":        `port "99999"`,
		"https://example.com":      "https://example.com\": a host or address is wanted, without a scheme",
		"example.com/path":         "without a scheme, path",
		"10.0.0.0/8":               "10.0.0.0/8\": a host or address is wanted",
		"user@example.com":         "user@example.com",
		"::1":                      `in brackets, "[::1]"`,
		"*.*":                      "*.*",
		"nmp,pypi":                 `entry "nmp": no set of hosts has this name; want one of debian, github, go, npm, pypi, a name with a dot, or a port, as in "nmp:443"`,
		strings.Repeat("a,", 1000): "1001 entries",
	} {
		_, err := egress.ParseAllow(list)
		require.ErrorContains(t, err, want)
	}
	_, err := egress.ParseAllow("a b,c d")
	require.ErrorContains(t, err, "a b")
	require.ErrorContains(t, err, "c d")
}

func FuzzParseAllow(f *testing.F) {
	for _, seed := range []string{"", "all", "a.example,*.b.example:22,1.2.3.4,[::1]:*", "*.xn--bcher-kva.example:*", "a:80,a:443"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		allow, err := egress.ParseAllow(list)
		if err != nil {
			return
		}
		again, err := egress.ParseAllow(allow.String())
		require.NoError(t, err, "%q became %q", list, allow)
		require.Equal(t, allow, again, "%q has two spellings", list)
	})
}

func TestAllow_NamesHostsOnAnyPort(t *testing.T) {
	t.Parallel()
	list, err := egress.ParseAllow("Allowed.org:8080,*.github.com,192.0.2.1,any.org:*")
	require.NoError(t, err)
	for _, host := range []string{"allowed.org", "ALLOWED.ORG.", "api.github.com", "192.0.2.1", "any.org"} {
		require.True(t, list.Names(host), host)
	}
	for _, host := range []string{"", "github.com", "other.org", "sub.allowed.org", "192.0.2.2", "a b", "evilgithub.com"} {
		require.False(t, list.Names(host), host)
	}
	everything, err := egress.ParseAllow("all")
	require.NoError(t, err)
	require.True(t, everything.Names("other.org"))
	require.False(t, egress.Allow{}.Names("other.org"))
}

// TestSets_AreHosts: each set is a list that can be parsed, and is told by its name.
func TestSets_AreHosts(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"debian", "github", "go", "npm", "pypi"}, egress.Sets())
	for _, name := range egress.Sets() {
		list, err := egress.ParseAllow(name)
		require.NoError(t, err)
		require.False(t, list.Empty())
		again, err := egress.ParseAllow(list.String())
		require.NoError(t, err)
		require.Equal(t, list, again)
	}
}

func TestAllow_AddressesAreThoseOfIPv4(t *testing.T) {
	t.Parallel()
	list, err := egress.ParseAllow("example.com,192.0.2.1,192.0.2.1:22,[2001:db8::1]:80,192.0.2.2:*")
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}, list.Addresses())
}
