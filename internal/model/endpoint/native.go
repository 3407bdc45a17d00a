package endpoint

import (
	"encoding/base64"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// IsNative reports whether a tool is declared to the provider in a type that begins with kind.
func IsNative(definition tools.Definition, provider, kind string) bool {
	declared, err := lenient.Object("", definition.Native[provider])
	return err == nil && strings.HasPrefix(lenient.String(declared["type"]), kind)
}

// NativeName is the name of the offered tool that is declared to the provider in a type that begins
// with kind; kind if there is none.
func NativeName(offered []tools.Definition, provider, kind string) string {
	for _, definition := range offered {
		if IsNative(definition, provider, kind) {
			return definition.Name
		}
	}
	return kind
}

// NativeImage is an image of base64; nil if it is none, or none that models take.
func NativeImage(mediaType, encoded string) *loop.Image {
	data, err := base64.StdEncoding.DecodeString(encoded)
	switch mediaType {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
	default:
		return nil
	}
	if err != nil || len(data) == 0 {
		return nil
	}
	return &loop.Image{MediaType: mediaType, Data: data}
}

// NativeText is the first of the named fields that is a text; "" if none is.
func NativeText(object lenient.Fields, names ...string) string {
	for _, name := range names {
		if text := lenient.String(object[name]); text != "" {
			return text
		}
	}
	return ""
}
