// Package media decodes the pictures and documents that sessions show to models. They may be made
// to do harm when they are decoded: one is decoded at a time, within bounds. A PDF document is read
// by PDFium in WebAssembly, which reaches nothing of this machine.
package media

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // the formats that models take
	"image/jpeg"
	"image/png"

	_ "golang.org/x/image/webp" // as above
)

// maxPixels bounds the pictures whose pixels are decoded. Of larger ones the header is.
const maxPixels = 24 << 20

// one is taken by what decodes.
//
//nolint:gochecknoglobals // it bounds the process
var one = make(chan struct{}, 1)

// Picture returns the media type that a picture has, whatever it was declared as, or why it is
// none.
func Picture(data []byte) (mediaType string, err error) {
	one <- struct{}{}
	defer func() { <-one }()
	defer func() {
		if broke := recover(); broke != nil {
			err = fmt.Errorf("decode: %v", broke)
		}
	}()
	config, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	if config.Width <= 0 || config.Height <= 0 {
		return "", fmt.Errorf("it has %d by %d pixels", config.Width, config.Height)
	}
	if config.Width <= maxPixels/config.Height && !animatedWebP(data) {
		_, _, err = image.Decode(bytes.NewReader(data))
	}
	if _, is := errors.AsType[png.UnsupportedError](err); is {
		err = nil
	}
	if _, is := errors.AsType[jpeg.UnsupportedError](err); is {
		err = nil
	}
	return "image/" + format, err
}

// animatedWebP reports whether a WebP picture moves. The library decodes only those that do not.
func animatedWebP(data []byte) bool {
	const flags, animation = 20, 1 << 1
	return len(data) > flags && string(data[8:16]) == "WEBPVP8X" && data[flags]&animation != 0
}
