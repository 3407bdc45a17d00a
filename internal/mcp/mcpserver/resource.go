package mcpserver

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
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

// readTool is the tool whose calls do what resources/read does, where no tool of the table does.
const readTool = "read"

// readers are the tools of the client that read what a path names: reading it as a resource is the
// same act, so the rules about all of them hold.
func (s *Server) readers(session protocol.SessionID, path string) []string {
	table := s.offer.tools.Load()
	arguments, _ := json.Marshal(map[string]string{"path": path}) // a text always can be
	var names []string
	for _, name := range harmless(table).Names() {
		if _, plan, failure := table.Plan(tools.Scope{Session: session, Sandbox: string(session)}, name, string(arguments)); failure == nil {
			switch plan.Payload.(type) {
			case protocol.FilesRead, wire.ResultRead:
				names = append(names, name)
			}
		}
	}
	if names == nil {
		names = []string{readTool}
	}
	return names
}

// plan plans the reading of what a path names for a client, if its role and the policy allow it.
func (s *Server) plan(ctx context.Context, request *mcp.ReadResourceRequest, path string, plan tools.Plan) (*loop.Single, error) {
	if err := may(principal(request), judge.See, judge.Workspace, path); err != nil {
		return nil, err
	}
	session := s.session(request)
	plan.Timeout, plan.Pool = time.Minute, s.options.Pool
	single := loop.PlanAct(ctx, session, "resources/read", s.readers(session, path), plan, request.Params.URI, s.single(request))
	if single.Call == nil {
		return nil, refused(single.Error)
	}
	single.Call.Tenant = wire.TenantOf(ctx)
	return single, nil
}

// ask has a worker read what was planned.
func (s *Server) ask(ctx context.Context, request *mcp.ReadResourceRequest, single *loop.Single) (*protocol.Result, error) {
	result, err := s.options.Dispatcher.CallWith(ctx, single.Call, calls.CallOptions{})
	if err == nil {
		single.Finish(ctx, result)
	}
	switch {
	case err != nil:
		return nil, err
	case result.Error != nil && (result.Error.Code == protocol.CodeNotFound || result.Error.Code == protocol.CodeInvalidArguments):
		return nil, mcp.ResourceNotFoundError(request.Params.URI)
	case result.Error != nil:
		return nil, refused(result.Error)
	case result.Value != nil && single.Result.Value == nil: // its hooks changed it
		return nil, refused(&protocol.Error{Code: protocol.CodePolicyDenied, Message: single.Text})
	}
	return result, nil
}

// refused is an error of a call as an answer to a request.
func refused(failure *protocol.Error) error {
	code := int64(jsonrpc.CodeInternalError)
	if failure.Code == protocol.CodePolicyDenied {
		code = jsonrpc.CodeInvalidRequest
	}
	return &jsonrpc.Error{Code: code, Message: string(failure.Code) + ": " + failure.Message}
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
	single, err := s.plan(ctx, request, name, tools.Plan{
		Payload:   protocol.FilesRead{Path: name, Raw: true},
		Resources: []protocol.Use{{Key: key, Access: protocol.Shared}}, Delivery: protocol.Idempotent,
	})
	if err != nil {
		return nil, err
	}
	result, err := s.ask(ctx, request, single)
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
	single, err := s.plan(ctx, request, render.HandlePrefix+string(id), tools.Plan{Payload: payload, Resources: []protocol.Use{}, Delivery: protocol.Idempotent})
	if err != nil {
		return nil, err
	}
	switch instead, err := s.await(ctx, s.session(request), &payload); {
	case err != nil:
		return nil, err
	case instead != nil && instead.Result == nil:
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: request.Params.URI, MIMEType: "text/plain", Text: instead.Text}}}, nil
	}
	result, err := s.ask(ctx, request, single)
	if err != nil {
		return nil, err
	}
	read, _ := result.Value.(wire.ResultReadResult)
	contents := &mcp.ResourceContents{URI: request.Params.URI, MIMEType: "text/plain", Text: prose.Valid(string(read.Content))}
	if next := read.FirstLine + read.Lines; read.Lines > 0 && next <= read.TotalLines {
		query := uri.Query()
		query.Set("offset", strconv.Itoa(next))
		uri.RawQuery = query.Encode()
		contents.Meta = mcp.Meta{"toolfleet/next": uri.String(), "toolfleet/lines": read.TotalLines}
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
}
