package cli

import (
	"net/netip"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Network is what a worker's sandboxes reach of the network, as flags.
type Network struct {
	AllowNet        string `placeholder:"HOST[:PORT],..." brief:"Hosts that commands can reach, or go, npm, pypi." help:"Hosts that sandboxes can reach by TCP: names, *.suffix or addresses, with ports 80 and 443 unless a port is given, HOST:* for every port; or sets of hosts: debian, github, go, npm, pypi; or all, the whole network. Default: none."`
	AllowNetPrivate string `placeholder:"PREFIX,..." help:"Address ranges, such as 10.0.0.0/8, that listed hosts may use although they are not public."`
}

// Reachable returns what the flags say. See [Enforced] for whether it can be had.
func (n *Network) Reachable() (egress.Allow, []netip.Prefix, error) {
	allow, err := egress.ParseAllow(n.AllowNet)
	if err != nil {
		return allow, nil, Usagef("--allow-net: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if strings.TrimSpace(n.AllowNetPrivate) == "" {
		return allow, nil, nil
	}
	var private []netip.Prefix
	for text := range strings.SplitSeq(n.AllowNetPrivate, ",") {
		text = strings.TrimSpace(text)
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return allow, nil, Usagef("--allow-net-private %q: want a range, as in 10.0.0.0/8 or 10.1.2.3/32", text)
		}
		private = append(private, prefix.Masked())
	}
	if allow.Empty() || allow.All() {
		return allow, nil, Usagef("--allow-net-private: only makes sense beside hosts in --allow-net")
	}
	return allow, private, nil
}

// CheckEnv returns a usage error for a value of --env that no program can get.
func CheckEnv(env map[string]string) error {
	if value, is := env[""]; is {
		return Usagef("--env =%s: the name is empty; want NAME=VALUE", value)
	}
	return nil
}

// Enforced returns a usage error unless a driver with these capabilities enforces allow. A
// driver that isolates nothing gives the whole network whatever is said, and says so itself.
func Enforced(allow egress.Allow, caps isolation.Caps) error {
	switch {
	case allow.Empty():
	case allow.All() && !caps.Enforces(isolation.NetworkAll):
		return Usagef("--allow-net: driver %s cannot give commands the whole network", caps.Driver)
	case !allow.All() && !caps.Enforces(isolation.NetworkProxy):
		return Usagef("--allow-net: driver %s cannot keep commands to the hosts of a list; driver ns can", caps.Driver)
	}
	return nil
}
