package egress_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
)

// TestProxy_OnlyWhatIsListed tries every target through every door: the host that is
// listed is reached in each of its spellings, and nothing else is.
func TestProxy_OnlyWhatIsListed(t *testing.T) {
	t.Parallel()
	port := site(t, "127.0.0.1:0", "site")
	nats := site(t, "127.0.0.1:0", "nats")
	resolver := &names{answers: map[string][]string{
		"good.example": {"127.0.0.1"}, "a.sub.example": {"127.0.0.1"}, "sub.example": {"127.0.0.1"}, "evilsub.example": {"127.0.0.1"},
		"evilgood.example": {"127.0.0.1"}, "good.example.evil.example": {"127.0.0.1"}, "other.example": {"127.0.0.1"},
		"mixed.example": {"10.0.0.1 169.254.169.254 127.0.0.1"}, "mapped.example": {"::ffff:127.0.0.1"},
		"loop6.example": {"::1"}, "imds.example": {"169.254.169.254"}, "lan.example": {"192.168.1.1"}, "nat64.example": {"64:ff9b::a9fe:a9fe"},
		"ula.example": {"fd00::1"}, "link.example": {"fe80::1"}, "sixtofour.example": {"2002:7f00:1::"}, "empty.example": {""},
		"second.example": {"127.0.0.2"}, "zero.example": {"0.0.0.0"}, "mapped10.example": {"::ffff:10.0.0.1"}, "azure.example": {"168.63.129.16"},
	}}
	r := start(t, egress.Options{
		Allow: allow(t, strings.ReplaceAll("good.example:P,*.sub.example:P,mixed.example:P,mapped.example:P,loop6.example:P,imds.example:P,lan.example:P,nat64.example:P,"+
			"ula.example:P,link.example:P,sixtofour.example:P,empty.example:P,second.example:P,zero.example:P,mapped10.example:P,azure.example:P,127.0.0.1:P,10.0.0.1:P,",
			":P,", fmt.Sprintf(":%d,", port))+fmt.Sprintf("good.example:%d", nats)),
		Private:  loopback(),
		Deny:     func(to netip.AddrPort) bool { return to.Port() == uint16(nats) },
		Resolver: resolver,
	})
	with := func(host string) string { return fmt.Sprintf("%s:%d", host, port) }
	tests := map[string]struct {
		target string
		want   string // of a refusal, in HTTP; "" is reached
	}{
		"listed":                     {with("good.example"), ""},
		"upper case":                 {with("GOOD.Example"), ""},
		"trailing dot":               {with("good.example."), ""},
		"suffix":                     {with("a.sub.example"), ""},
		"one good address of three":  {with("mixed.example"), ""},
		"mapped address":             {with("mapped.example"), ""},
		"listed address":             {with("127.0.0.1"), ""},
		"other host":                 {with("other.example"), "not listed"},
		"other host, trailing dot":   {with("other.example."), "not listed"},
		"the suffix itself":          {with("sub.example"), "not listed"},
		"suffix trick":               {with("evilsub.example"), "not listed"},
		"prefix trick":               {with("evilgood.example"), "not listed"},
		"listed as a label":          {with("good.example.evil.example"), "not listed"},
		"other port":                 {"good.example:81", "not listed"},
		"the fleet's server":         {fmt.Sprintf("good.example:%d", nats), "belongs to the fleet"},
		"address of the host":        {with("127.0.0.2"), "not listed"},
		"metadata address":           {"169.254.169.254:80", "not listed"},
		"metadata by name":           {with("imds.example"), "169.254.169.254 is not on the public Internet\n"},
		"metadata of Azure by name":  {with("azure.example"), "168.63.129.16 is not on the public Internet"},
		"private, listed address":    {with("10.0.0.1"), "is not on the public Internet (an operator can allow it with --allow-net-private 10.0.0.1/32)"},
		"private by name":            {with("lan.example"), "is not on the public Internet"},
		"private by mapped address":  {with("mapped10.example"), "10.0.0.1 is not on the public Internet"},
		"NAT64 by name":              {with("nat64.example"), "is not on the public Internet"},
		"unique local by name":       {with("ula.example"), "is not on the public Internet"},
		"link local by name":         {with("link.example"), "is not on the public Internet"},
		"6to4 by name":               {with("sixtofour.example"), "is not on the public Internet"},
		"loopback by name":           {with("second.example"), "is not on the public Internet"},
		"IPv6 loopback by name":      {with("loop6.example"), "is not on the public Internet"},
		"unspecified by name":        {with("zero.example"), "is not on the public Internet"},
		"a name without an address":  {with("empty.example"), "has no address"},
		"odd spelling of an address": {with("127.1"), "four decimal numbers"},
		"decimal address":            {with("2130706433"), "four decimal numbers"},
		"hexadecimal address":        {with("0x7f000001"), "four decimal numbers"},
		"octal address":              {with("0177.0.0.1"), "four decimal numbers"},
	}
	for door, get := range doors() {
		for name, test := range tests {
			t.Run(door+"/"+name, func(t *testing.T) {
				t.Parallel()
				if door == "link" && name == "listed address" {
					t.Skip("it is the sandbox's own loopback there")
				}
				got := get(t, r, test.target)
				require.Equal(t, test.want == "", got.allowed, got.text)
				if test.want == "" {
					require.Contains(t, got.text, "site GET")
				} else if tellsWhy(door) {
					require.Contains(t, got.text, test.want)
				}
			})
		}
	}
}

// tellsWhy reports whether a door has a place for the reason of a refusal.
func tellsWhy(door string) bool { return door == "connect" || door == "absolute" }

func TestProxy_RefusalSaysWhatToDo(t *testing.T) {
	t.Parallel()
	r := start(t, egress.Options{Allow: allow(t, "good.example:443,*.b.example")})
	for _, door := range []string{"connect", "absolute"} {
		got := doors()[door](t, r, "Evil.example:443")
		require.False(t, got.allowed)
		require.Equal(t, "403 network: evil.example:443 must not be reached: it is not listed "+
			"(an operator can allow it with --allow-net evil.example:443); listed are: *.b.example:443, *.b.example:80, good.example:443\n", got.text)
	}
}

// TestProxy_RefusalIsInTheStatusLineOfATunnel: programs show no more of an answer to CONNECT.
func TestProxy_RefusalIsInTheStatusLineOfATunnel(t *testing.T) {
	t.Parallel()
	port := site(t, "127.0.0.1:0", "site")
	r := start(t, egress.Options{
		Allow: allow(t, "good.example:443,gone.example:1"), Private: append(loopback(), netip.MustParsePrefix("127.0.0.3/32")),
		Resolver: &names{answers: map[string][]string{"gone.example": {"127.0.0.3 127.0.0.3"}}},
	})
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr})}}
	for target, want := range map[string]string{
		fmt.Sprintf("127.0.0.1:%d", port): "it is not listed (an operator can allow it with --allow-net 127.0.0.1:",
		"gone.example:1":                  "connect to gone.example:1: dial tcp 127.0.0.3:1: connect: connection refused; dial",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+target, nil)
		require.NoError(t, err)
		response, err := client.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		require.ErrorContains(t, err, want)
	}
}

func TestProxy_BrokenRequestsReachNothing(t *testing.T) {
	t.Parallel()
	port := site(t, "127.0.0.1:0", "site")
	r := start(t, egress.Options{
		Allow: allow(t, fmt.Sprintf("good.example:%d,good.example:80", port)), Private: loopback(),
		Resolver: &names{answers: map[string][]string{"good.example": {"127.0.0.1"}}},
	})
	good := fmt.Sprintf("good.example:%d", port)
	for name, request := range map[string]string{
		"NUL in CONNECT":             "CONNECT good.example\x00.evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"NUL in an address":          "GET http://good.example\x00/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"space in CONNECT":           "CONNECT good.example :443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"user in CONNECT":            "CONNECT user@" + good + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"user in an address":         "GET http://user:pass@" + good + "/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"host as user":               "GET http://" + good + "@evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT without a port":     "CONNECT good.example HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT with a path":        "CONNECT /x HTTP/1.1\r\nHost: " + good + "\r\n\r\n",
		"CONNECT with an address":    "CONNECT http://" + good + "/ HTTP/1.1\r\nHost: " + good + "\r\n\r\n",
		"origin form":                "GET / HTTP/1.1\r\nHost: " + good + "\r\n\r\n",
		"https address":              "GET https://" + good + "/ HTTP/1.1\r\nHost: " + good + "\r\n\r\n",
		"file address":               "GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
		"opaque address":             "GET http:good.example HTTP/1.1\r\nHost: x\r\n\r\n",
		"escape in a host":           "GET http://good%2eexample/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"backslash":                  "GET http://good.example\\@evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"zone":                       "GET http://[fe80::1%25lo]/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS *":                  "OPTIONS * HTTP/1.1\r\nHost: " + good + "\r\n\r\n",
		"no HTTP":                    "hello\r\n\r\n",
		"header that is too long":    "GET http://" + good + "/ HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"header in the middle":       "CONNECT good.example\r\nHost: x\r\n\r\n",
		"two lengths":                "POST http://" + good + "/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"a body of unknown encoding": "POST http://" + good + "/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: odd\r\n\r\nab",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, body := r.raw(t, request)
			require.GreaterOrEqual(t, status, 400)
			require.NotContains(t, body, "site ")
		})
	}
}

// TestProxy_RebindingChangesNothing: the second answer of a name server is never used.
func TestProxy_RebindingChangesNothing(t *testing.T) {
	t.Parallel()
	port := site(t, "127.0.0.1:0", "first")
	site(t, fmt.Sprintf("127.0.0.2:%d", port), "second")
	for door, get := range doors() {
		t.Run(door, func(t *testing.T) {
			t.Parallel()
			resolver := &names{answers: map[string][]string{"good.example": {"127.0.0.1", "127.0.0.2"}}}
			r := start(t, egress.Options{
				Allow: allow(t, "good.example:*"), Resolver: resolver,
				Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
			})
			got := get(t, r, fmt.Sprintf("good.example:%d", port))
			require.True(t, got.allowed, got.text)
			require.Contains(t, got.text, "first GET")
			require.Equal(t, 1, resolver.count("good.example"), "resolved once for the check and the connection")
			again := get(t, r, fmt.Sprintf("good.example:%d", port))
			require.NotContains(t, again.text, "second GET")
			require.Equal(t, door == "absolute", again.allowed, "a new connection is judged anew; plain HTTP keeps the first one")
		})
	}
}

func TestProxy_EmptyListAllowsNothing(t *testing.T) {
	t.Parallel()
	port := site(t, "127.0.0.1:0", "site")
	r := start(t, egress.Options{Private: loopback()})
	for door, get := range doors() {
		got := get(t, r, fmt.Sprintf("127.0.0.1:%d", port))
		require.False(t, got.allowed, door)
		if tellsWhy(door) {
			require.Contains(t, got.text, "403 ")
			require.Contains(t, got.text, "may not reach any host")
		}
	}
}

func TestProxy_DeadIsRefused(t *testing.T) {
	t.Parallel()
	r := start(t, egress.Options{Allow: allow(t, "good.example:*"), Private: loopback()})
	r.stop()
	_, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.addr)
	require.Error(t, err)
}

func TestNew_RejectsNegativeOptions(t *testing.T) {
	t.Parallel()
	_, err := egress.New(egress.Options{Conns: -1})
	require.ErrorContains(t, err, "-1 connections")
	_, err = egress.New(egress.Options{Idle: -1})
	require.ErrorContains(t, err, "must not be negative")
}

func TestAllow_MatchesWhatIsListed(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ list, yes, no string }{
		"nothing":     {"", "", "example.com:443 127.0.0.1:80"},
		"spaces only": {"  ", "", "example.com:443"},
		"host": {
			"example.com", "example.com:443 example.com:80 EXAMPLE.COM.:443",
			"example.com:22 www.example.com:443 evilexample.com:443 example.com.evil.example:443",
		},
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
