package acp

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// block is a block of a prompt, of any type.
type block struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Data     string `json:"data"`
	MimeType string `json:"mimeType"` //nolint:tagliatelle // as the protocol has it
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Resource *struct {
		URI      string  `json:"uri"`
		Text     *string `json:"text"`
		Blob     *string `json:"blob"`
		MimeType string  `json:"mimeType"` //nolint:tagliatelle // as the protocol has it
	} `json:"resource"`
}

// inputOf makes the input of a turn from a prompt. Files of the workspace are named by their
// paths, which tools can read; other files become attachments.
func inputOf(prompt []json.RawMessage, workspace string) (in loop.Input, wrong *acp.RequestError) {
	if len(prompt) == 0 {
		return in, invalid("prompt", "is empty: must have a block")
	}
	var text strings.Builder
	attach := func(field, name string, data []byte) *acp.RequestError {
		a, err := loop.NewAttachment(name, data)
		if err != nil {
			return invalid(field, "%v", plain(err))
		}
		in.Attachments = append(in.Attachments, a)
		return nil
	}
	for i, encoded := range prompt {
		var b block
		field := fmt.Sprintf("prompt[%d]", i)
		if wrong = badJSON(field, json.Unmarshal(encoded, &b)); wrong != nil {
			return in, wrong
		}
		switch b.Type {
		case "text":
			text.WriteString(b.Text)
		case "image":
			wrong = b.image(field, i, attach)
		case "resource_link":
			mention, read := b.link(workspace)
			text.WriteString(mention)
			if content, err := read(); err == nil && content != nil {
				_ = attach(field, nameOf(b.URI, b.Name), content) // else it is only named
			}
		case "resource":
			var mention string
			mention, wrong = b.embedded(field, workspace, attach)
			text.WriteString(mention)
		default:
			wrong = invalid(field+".type", "%q: must be one of text, image, resource_link and resource", b.Type)
		}
		if wrong != nil {
			return in, wrong
		}
	}
	if in.Text = strings.TrimSpace(text.String()); in.Text == "" && len(in.Attachments) == 0 {
		return in, invalid("prompt", "has no text")
	}
	return in, nil
}

// attacher adds a file to the input.
type attacher = func(field, name string, data []byte) *acp.RequestError

// image is an image of the prompt itself.
func (b *block) image(field string, i int, attach attacher) *acp.RequestError {
	data, err := base64.StdEncoding.DecodeString(b.Data)
	if err != nil || len(data) == 0 {
		return invalid(field+".data", "must be an image in base64")
	}
	name := nameOf(b.URI, "")
	if name == "" {
		name = fmt.Sprintf("image-%d", i+1)
		if endings, err := mime.ExtensionsByType(b.MimeType); err == nil && len(endings) > 0 {
			name += endings[len(endings)-1]
		}
	}
	return attach(field+".data", name, data)
}

// link is what stands in the text for a file or a page. read returns the content of a file outside
// of the workspace, where tools may not see it.
func (b *block) link(workspace string) (mention string, read func() ([]byte, error)) {
	local := fileOf(b.URI)
	if local == "" {
		return "[" + nameOf(b.URI, b.Name) + "](" + b.URI + ")", func() ([]byte, error) { return nil, nil }
	}
	if inside, ok := within(workspace, local); ok {
		return "`" + inside + "`" + fragment(b.URI), func() ([]byte, error) { return nil, nil }
	}
	return "`" + local + "`" + fragment(b.URI), func() ([]byte, error) { return regular.Read(local, render.MaxImageBytes) }
}

// embedded is a file whose content the prompt has.
func (b *block) embedded(field, workspace string, attach attacher) (mention string, wrong *acp.RequestError) {
	r := b.Resource
	if r == nil {
		return "", invalid(field+".resource", "is missing")
	}
	b.URI = r.URI
	var data []byte
	switch {
	case r.Text != nil:
		field, data = field+".resource.text", []byte(*r.Text)
	case r.Blob != nil:
		field += ".resource.blob"
		var err error
		if data, err = base64.StdEncoding.DecodeString(*r.Blob); err != nil {
			return "", invalid(field, "must be base64: %v", err)
		}
	default:
		return "", invalid(field+".resource", "has neither text nor blob")
	}
	mention, _ = b.link(workspace)
	if len(data) == 0 {
		return mention + " (empty)", nil
	}
	name := nameOf(r.URI, "")
	if name == "" {
		name = "resource"
	}
	return mention, attach(field, name, data)
}

// fileOf is the path of a file: URI; "" for others.
func fileOf(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || !filepath.IsAbs(filepath.FromSlash(u.Path)) {
		return ""
	}
	return filepath.Clean(filepath.FromSlash(u.Path))
}

// fragment is the part of a file that a URI names, such as the lines of a selection.
func fragment(uri string) string {
	if u, err := url.Parse(uri); err == nil && u.Fragment != "" {
		return " (" + u.Fragment + ")"
	}
	return ""
}

// within is a path relative to the workspace that has it.
func within(workspace, file string) (string, bool) {
	inside, err := filepath.Rel(workspace, file)
	return filepath.ToSlash(inside), workspace != "" && err == nil && filepath.IsLocal(inside)
}

// nameOf is the name of what a URI names.
func nameOf(uri, name string) string {
	if name != "" {
		return path.Base(filepath.ToSlash(name))
	}
	if u, err := url.Parse(uri); err == nil && path.Base(u.Path) != "." && path.Base(u.Path) != "/" {
		return path.Base(u.Path)
	}
	return ""
}

// plain leaves out the code of an error, which is for programs.
func plain(err error) error {
	if coded, is := errors.AsType[*protocol.Error](err); is {
		return errors.New(coded.Message)
	}
	return err
}
