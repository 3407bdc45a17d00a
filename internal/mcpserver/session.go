package mcpserver

import (
	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// keyHeader carries the key of the URL from [Server.Handler] to the calls of a request.
const keyHeader = "Toolfleet-Mcp-Key"

// session returns whose sandbox a request uses: the one that the server was given; else that of the
// protocol's session; else, as that has none since 2026-07-28, the one of the key in the URL, among
// those of the token.
func (s *Server) session(request mcp.Request) protocol.SessionID {
	if s.options.Session != "" {
		return s.options.Session
	}
	owner, key := "", ""
	if extra := request.GetExtra(); extra != nil {
		if extra.TokenInfo != nil {
			owner = extra.TokenInfo.UserID
		}
		key = extra.Header.Get(keyHeader)
	}
	if id := request.GetSession().ID(); id != "" && key == "" {
		if session, err := protocol.ParseSessionID(id); err == nil {
			return session
		}
	}
	return protocol.SessionID(uuid.NewSHA1(keySpace, []byte(string(s.options.Fleet)+"\x00"+owner+"\x00"+key)).String())
}

// keySpace is the name space of sessions that have a key.
var keySpace = uuid.MustParse("4ad8c2ab-6b0d-4c1c-9a55-2d0f4b1f7a10") //nolint:gochecknoglobals // a constant
