package egress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// sets are hosts that are wanted together, by the name of their set.
func sets() map[string]string {
	return map[string]string{
		"debian": "deb.debian.org,security.debian.org",
		"github": "github.com,github.com:22,api.github.com,codeload.github.com,raw.githubusercontent.com," +
			"objects.githubusercontent.com,release-assets.githubusercontent.com",
		"go":   "proxy.golang.org,sum.golang.org,storage.googleapis.com", // big modules are there
		"npm":  "registry.npmjs.org",
		"pypi": "pypi.org,files.pythonhosted.org",
	}
}

// Sets returns the names of the sets of hosts that [ParseAllow] knows, in order.
func Sets() []string { return slices.Sorted(maps.Keys(sets())) }

// hostsOf are the hosts of a set, or else the entry itself.
func hostsOf(entry string) string { return cmp.Or(sets()[strings.ToLower(entry)], entry) }

// noSet is the fault of a word that is no set and could be meant as one; "" is none.
func noSet(entry string) string {
	if entry == "" || strings.Trim(strings.ToLower(entry), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return ""
	}
	return fmt.Sprintf("no set of hosts has this name; want one of %s, a name with a dot, or a port, as in \"%s:443\"",
		strings.Join(Sets(), ", "), entry)
}
