package offline

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/shell"
)

// client reports whether arguments name a host that cannot be reached.
type client func(r ReachFunc, args []shell.Word) bool

// clients are the programs that talk to hosts named by their arguments.
var clients = map[string]client{ //nolint:gochecknoglobals // a constant table
	"curl": fetches("sSfLkIivgGqnN#OJ046"), "wget": fetches("qvcNrkpEKxS46"),
	"aria2c": fetches("q"), "http": fetches("vhbjf"), "https": fetches("vhbjf"), "xh": fetches("vhbjf"), "lynx": fetches(""), "w3m": fetches(""),
	"ssh": talks("bcDEeFIiJLlmOopQRSWw"), "mosh": talks("p"), "telnet": talks("lbne"), "ftp": talks(""), "lftp": talks("upe"),
	"ping": talks("ciIlmMpQsStTwW"), "ping6": talks("ciIlmMpQsStTwW"), "traceroute": talks("fgimpqstwz"), "whois": talks("hp"),
	"dig": asks, "nslookup": asks, "host": asks,
	"scp": copies, "sftp": copies, "rsync": copies,
	"nc": connects, "ncat": connects, "netcat": connects, "socat": relays,
	"gh": func(r ReachFunc, args []shell.Word) bool {
		return r == nil && startsWith(args, "pr", "issue", "repo", "release", "run", "workflow", "api", "auth", "gist", "search")
	},
}

// fetches is for programs whose arguments are URLs: what has a scheme is one, and what has
// none only where it can be no value of an option. plain are the letters of options
// without a value.
func fetches(plain string) client {
	return func(r ReachFunc, args []shell.Word) bool {
		hosts := false
		for i, arg := range args {
			if !arg.Known {
				continue
			}
			text := strings.TrimPrefix(arg.Text, "--url=")
			if schemes.MatchString(text) {
				return r.elsewhere(text)
			}
			before := ""
			if i > 0 {
				before = args[i-1].Text
			}
			option := strings.HasPrefix(before, "-")
			hosts = hosts || r.named(text) && (!option || !strings.HasPrefix(before, "--") && strings.Trim(before[1:], plain) == "")
		}
		return hosts
	}
}

// talks is for programs whose first argument is a host; valued are the letters of options with a
// value.
func talks(valued string) client {
	return func(r ReachFunc, args []shell.Word) bool {
		words := positional(args, valued)
		if len(words) == 0 {
			return false
		}
		if schemes.MatchString(words[0]) {
			return r.elsewhere(words[0])
		}
		_, host, has := strings.Cut(words[0], "@")
		if !has {
			host = words[0]
		}
		return has && r.remoteHost(host) || r.named(host)
	}
}

// asks is for programs that ask name servers.
func asks(r ReachFunc, args []shell.Word) bool {
	words := positional(args, "bcfkpqty")
	server := slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "@") && !r.remoteHost(w[1:]) })
	return !server && slices.ContainsFunc(words, r.named)
}

// copies is for programs that copy from and to host:path.
func copies(r ReachFunc, args []shell.Word) bool {
	return slices.ContainsFunc(positional(args, "BcDeFfiJlMoPSsTX"), func(word string) bool {
		host, ok := scpLike(word)
		return ok && r.remoteHost(host) || r.elsewhere(word)
	})
}

// connects is for nc and its kin.
func connects(r ReachFunc, args []shell.Word) bool {
	for _, arg := range args {
		if strings.HasPrefix(arg.Text, "-") && !strings.HasPrefix(arg.Text, "--") && strings.ContainsAny(arg.Text, "lU") || arg.Text == "--listen" {
			return false
		}
	}
	return talks("eiIMmOPpqsTVWwXx")(r, args)
}

// relays is for socat, whose addresses are TYPE:HOST:PORT.
func relays(r ReachFunc, args []shell.Word) bool {
	return slices.ContainsFunc(args, func(arg shell.Word) bool {
		parts := strings.Split(arg.Text, ":")
		kind := strings.ToLower(parts[0])
		return arg.Known && len(parts) > 2 && !strings.Contains(kind, "listen") &&
			(strings.HasPrefix(kind, "tcp") || strings.HasPrefix(kind, "udp") || strings.HasPrefix(kind, "openssl") || strings.HasPrefix(kind, "ssl")) &&
			r.named(parts[1])
	})
}

// startsWith reports whether the first argument that is no option is one of words.
func startsWith(args []shell.Word, words ...string) bool {
	found := positional(args, "")
	return len(found) > 0 && slices.Contains(words, found[0])
}

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
