package wire

import (
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// streams is the segment of a resource key that precedes the name of a stream in a sandbox: no path
// that a tool uses begins so by accident.
const streams = ":stream"

// StreamKey is the resource that the calls of a stream use, exclusively: in the lane of its
// sandbox, or a lane of its own without a sandbox.
func StreamKey(sandbox, name string) protocol.ResourceKey {
	if sandbox == "" {
		return protocol.ResourceKey("stream/" + name)
	}
	return protocol.SandboxKey(sandbox) + protocol.ResourceKey("/"+streams+"/"+name)
}

// IsStreamKey reports whether a key is that of a stream in a sandbox. Its calls may change any file
// of the sandbox.
func IsStreamKey(key protocol.ResourceKey) bool {
	return strings.HasPrefix(strings.TrimPrefix(string(key), string(key.Lane())), "/"+streams+"/")
}
