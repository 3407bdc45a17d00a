package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What a header says of a call is one bounded line, without the values of environments, of headers
// and of what is written, whatever the call has.
func TestAbout_IsBoundedAndHasNoSecret(t *testing.T) {
	t.Parallel()
	secret := map[string]string{"TOKEN": "hunter2"}
	long := strings.Repeat("hunter2", 1000)
	many := make([]protocol.Use, protocol.MaxUses)
	for i := range many {
		many[i] = protocol.Use{Key: protocol.ResourceKey("a/b/" + strings.Repeat("\x01", 400))}
	}
	for name, payload := range map[string]protocol.Payload{
		"command": protocol.CommandRun{Command: "true", Env: secret, Stdin: protocol.Bytes(long)},
		"code":    protocol.CodeRun{Code: long, Language: "sh", Env: secret},
		"write":   protocol.FilesWrite{Path: "a", Content: protocol.Bytes(long)},
		"fetch":   protocol.HTTPFetch{URL: "https://example.com", Headers: secret},
		"server": protocol.MCPCall{
			Server: protocol.MCPServer{Name: "s", Env: secret, Headers: secret, Client: &protocol.MCPClient{Secret: "hunter2"}},
			Tool:   "t", Arguments: []byte(`{}`),
		},
		"tool":    protocol.ToolRun{Argv: []string{"t"}, Env: secret, Arguments: []byte(`{"many": ["` + strings.Repeat(`x", "`, 2000) + `"]}`)},
		"turn":    wire.TurnRun{Prompt: "hunter2"},
		"handler": protocol.UnknownPayload{Name: "own", Raw: []byte(`{"type":"own","version":1,"arguments":"` + long + `"}`)},
		"none":    nil,
	} {
		for _, resources := range [][]protocol.Use{nil, {{Key: "account/one", Access: protocol.Shared}}, many} {
			c := &protocol.Call{ID: "c", SessionID: "s", Pool: "default", Tenant: "acme", By: "token:ann", Step: 2, Index: 3, Resources: resources, Payload: payload}
			header := wire.AboutOf(c, time.UnixMilli(1234)).Header()
			require.LessOrEqual(t, len(header), 10<<10, name)
			require.NotContains(t, header, "hunter2", name)
			require.NotContains(t, header, "\n", name)
			about := wire.AboutOfHeader(header)
			require.Equal(t, protocol.Tenant("acme"), about.Tenant, name)
			require.Equal(t, []int{0, 2, 3}, []int{about.Turn, about.Step, about.Index}, name)
			require.Equal(t, int64(1234), about.Accepted, name)
			if len(resources) == 1 {
				require.Equal(t, resources, about.Resources, name)
				require.Equal(t, "default/account/one", about.Lane, name)
			}
		}
	}
	require.Zero(t, wire.AboutOfHeader("no JSON"))
	require.Zero(t, wire.AboutOfHeader(`{"tool": "`+strings.Repeat("x", 10<<10)+`"}`))
}
