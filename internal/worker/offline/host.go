package offline

import (
	"net/netip"
	"net/url"
	"regexp"
	"strings"
)

// schemes are those of URLs that lead to the network.
var schemes = regexp.MustCompile(`^(?i:https?|ftps?|git|ssh|sftp|rsync|wss?|git\+ssh|git\+https)://`)

// domain matches a host name with a dot, or an address, with an optional port and path.
var domain = regexp.MustCompile(`^(?i:[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}|\d+\.\d+\.\d+\.\d+)(:\d+)?(/.*)?$`)

// elsewhere reports whether a URL leads to a host that cannot be reached.
func (r ReachFunc) elsewhere(raw string) bool {
	if !schemes.MatchString(raw) {
		return false
	}
	parsed, err := url.Parse(raw)
	return err == nil && r.remoteHost(parsed.Hostname())
}

// remoteHost reports whether a host name or address is neither the sandbox's own nor one
// that can be reached.
func (r ReachFunc) remoteHost(host string) bool {
	host = strings.ToLower(strings.Trim(host, "[]"))
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return false
	}
	if address, err := netip.ParseAddr(host); err == nil {
		return !address.IsLoopback() && !address.IsUnspecified() && !r.reaches(host)
	}
	return !strings.ContainsAny(host, "$`{} ") && !r.reaches(host)
}

func (r ReachFunc) reaches(host string) bool { return r != nil && r(host) }

// named reports whether a word without a scheme is surely a host that cannot be reached.
func (r ReachFunc) named(word string) bool {
	if !domain.MatchString(word) {
		return false
	}
	host, _, _ := strings.Cut(word, "/")
	host, _, _ = strings.Cut(host, ":")
	return r.remoteHost(host)
}

// scpLike returns the host of "user@host:path"; ok is false for anything else.
func scpLike(word string) (host string, ok bool) {
	before, _, found := strings.Cut(word, ":")
	if !found || before == "" || strings.ContainsAny(before, "/\\") || strings.Contains(word, "://") {
		return "", false
	}
	if _, after, has := strings.Cut(before, "@"); has {
		return after, true
	}
	return before, strings.Contains(before, ".")
}
