package kinds

import (
	"cmp"
	"context"
	"path"
	"strings"

	"github.com/toolfleet/toolfleet/internal/worker/offline"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// networkOff refuses, before it runs, a command that is known to need what its sandbox
// does not reach of the network. It is for the model's sake: the sandbox enforces it anyway.
func (h *Host) networkOff(ctx context.Context, s sandbox.Sandbox, cwd string, find func(offline.Network) string) error {
	var reach offline.ReachFunc
	mode := cmp.Or(h.Network, sandbox.NetworkNone)
	switch {
	case !h.Caps.Enforces(mode), mode != sandbox.NetworkNone && mode != sandbox.NetworkProxy:
		return nil
	case mode == sandbox.NetworkProxy:
		reach = h.Allow.Names
	}
	found := find(offline.Network{
		Reach: reach, Remote: gitRemotes(ctx, s.FS(), cwd),
		Cache: h.Cache,
	})
	switch {
	case found == "":
		return nil
	case reach != nil:
		return protocol.Errorf(protocol.CodeNetworkOff,
			"this sandbox reaches a few hosts only, and `%s` names another; nothing was run. What can be reached: %s, and the sandbox's own localhost. "+
				"Whoever runs the worker can allow hosts with --allow-net HOST[:PORT],... (or all)", found, h.Allow)
	case !h.Caps.Enforces(sandbox.NetworkProxy): // nor does the driver give sandboxes a localhost
		return protocol.Errorf(protocol.CodeNetworkOff,
			"the network is off in this sandbox, and `%s` needs it; nothing was run. Nothing can be reached, localhost neither. "+
				"Whoever runs the worker can allow the whole network with --allow-net all, or hosts where sandbox driver ns works", found)
	default:
		return protocol.Errorf(protocol.CodeNetworkOff,
			"the network is off in this sandbox, and `%s` needs it; nothing was run. Only the sandbox's own localhost can be reached. "+
				"Whoever runs the worker can allow hosts with --allow-net HOST[:PORT],... (or all)", found)
	}
}

// gitRemotes looks remotes up in the configuration of the repository in a directory.
func gitRemotes(ctx context.Context, fs sandbox.FS, cwd string) offline.RemoteFunc {
	return func(dir, remote string) (string, bool) {
		config, err := fs.Read(ctx, protocol.FilesRead{Path: path.Join(cwd, dir, ".git/config")})
		if err != nil {
			return "", false
		}
		return remoteURL(string(config.Content), remote)
	}
}

// remoteURL returns the URL of a remote in a git configuration: "" is origin, or the only one there
// is.
func remoteURL(config, remote string) (string, bool) {
	urls := map[string]string{}
	section := ""
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = ""
			if name, ok := strings.CutPrefix(line, `[remote "`); ok {
				section, _, _ = strings.Cut(name, `"`)
			}
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		if section != "" && strings.TrimSpace(name) == "url" {
			urls[section] = strings.TrimSpace(value)
		}
	}
	if strings.Contains(config, "insteadOf") || strings.Contains(config, "insteadof") {
		return "", false // the URL is not what is asked
	}
	if remote == "" {
		if remote = "origin"; len(urls) == 1 {
			for only := range urls {
				remote = only
			}
		}
	}
	url, ok := urls[remote]
	return url, ok
}
