package mcpserver

import (
	"context"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// The resources of a client's sandbox.
const (
	fileTemplate   = "toolfleet://workspace/{+path}"
	resultTemplate = "toolfleet://result/{call}{?offset,part}"

	filePrefix   = "toolfleet://workspace/"
	resultPrefix = "toolfleet://result/"
)

func resultURI(call protocol.CallID) string { return resultPrefix + url.PathEscape(string(call)) }

func resultLink(call protocol.CallID) *mcp.ResourceLink {
	return &mcp.ResourceLink{URI: resultURI(call), Name: "result " + string(call), MIMEType: "text/plain", Description: "All of the result."}
}

func (s *Server) addResources() {
	s.server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: fileTemplate, Name: "workspace file", Title: "Workspace file", Description: "A file of the workspace, by its path there.",
	}, s.readFile)
	s.server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: resultTemplate, Name: "result", Title: "Result of a call", MIMEType: "text/plain",
		Description: "All of the result of an earlier call: from line offset, of which the first is 1; part is stdout, stderr, output, text or value.",
	}, s.readResult)
}

// ask has a worker read something for a client.
func (s *Server) ask(ctx context.Context, request *mcp.ReadResourceRequest, plan tools.Plan) (*protocol.Result, error) {
	session := s.session(request)
	scope := tools.Scope{Session: session, Sandbox: string(session)}
	plan.Timeout = time.Minute
	call, failure := plan.Call(scope, tools.Place{}, "", "resources/read", time.Now().UTC())
	if failure != nil {
		return nil, failure
	}
	call.MinLevel = s.options.MinLevel
	var result *protocol.Result
	err := s.options.Dispatcher.Dispatch(ctx, []protocol.Call{call}, func(u loop.Update) { result = u.Result })
	switch {
	case err != nil:
		return nil, err
	case result.Error != nil && (result.Error.Code == protocol.CodeNotFound || result.Error.Code == protocol.CodeInvalidArguments):
		return nil, mcp.ResourceNotFoundError(request.Params.URI)
	case result.Error != nil:
		return nil, result.Error
	}
	return result, nil
}

func (s *Server) readFile(ctx context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	name, err := url.PathUnescape(strings.TrimPrefix(request.Params.URI, filePrefix))
	if err != nil || name == "" {
		return nil, mcp.ResourceNotFoundError(request.Params.URI)
	}
	key, err := protocol.SandboxKey(string(s.session(request))).Join(name)
	if err != nil {
		return nil, mcp.ResourceNotFoundError(request.Params.URI)
	}
	result, err := s.ask(ctx, request, tools.Plan{
		Payload:   protocol.FilesRead{Path: name, Raw: true},
		Resources: []protocol.Use{{Key: key, Access: protocol.Shared}}, Delivery: protocol.Idempotent,
	})
	if err != nil {
		return nil, err
	}
	read, _ := result.Value.(protocol.FilesReadResult)
	contents := &mcp.ResourceContents{URI: request.Params.URI, MIMEType: mediaType(name, read.Content)}
	if read.Binary {
		contents.Blob = read.Content
	} else {
		contents.Text = string(read.Content)
	}
	if read.Truncated {
		contents.Meta = mcp.Meta{"toolfleet/truncated": true, "toolfleet/bytes": read.Bytes}
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
}

func mediaType(name string, content []byte) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return http.DetectContentType(content)
}

func (s *Server) readResult(ctx context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri, err := url.Parse(request.Params.URI)
	if err != nil {
		return nil, mcp.ResourceNotFoundError(request.Params.URI)
	}
	id, err := protocol.ParseCallID(strings.TrimPrefix(uri.Path, "/"))
	offset, _ := strconv.Atoi(uri.Query().Get("offset"))
	if err != nil || offset < 0 {
		return nil, mcp.ResourceNotFoundError(request.Params.URI)
	}
	payload := wire.ResultRead{CallID: id, Part: uri.Query().Get("part"), Offset: offset}
	switch instead, err := s.await(ctx, s.session(request), &payload); {
	case err != nil:
		return nil, err
	case instead != nil && instead.Result == nil:
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: request.Params.URI, MIMEType: "text/plain", Text: instead.Text}}}, nil
	}
	result, err := s.ask(ctx, request, tools.Plan{Payload: payload, Resources: []protocol.Use{}, Delivery: protocol.Idempotent})
	if err != nil {
		return nil, err
	}
	read, _ := result.Value.(wire.ResultReadResult)
	contents := &mcp.ResourceContents{URI: request.Params.URI, MIMEType: "text/plain", Text: strings.ToValidUTF8(string(read.Content), "�")}
	if next := read.FirstLine + read.Lines; read.Lines > 0 && next <= read.TotalLines {
		query := uri.Query()
		query.Set("offset", strconv.Itoa(next))
		uri.RawQuery = query.Encode()
		contents.Meta = mcp.Meta{"toolfleet/next": uri.String(), "toolfleet/lines": read.TotalLines}
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
}
