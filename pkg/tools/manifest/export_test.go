package manifest

import "github.com/toolfleet/toolfleet/pkg/tools/mcp"

// ParseServer is for tests.
func ParseServer(file string, content []byte) (mcp.Server, []Problem) {
	return parseServer(file, content)
}
