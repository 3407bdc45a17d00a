// Package media decodes the pictures and documents that sessions show to models. They may be made
// to do harm when they are decoded: one is decoded at a time, within bounds. A PDF document is read
// by PDFium in WebAssembly, which reaches nothing of this machine.
package media

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // the formats that models take
	"image/jpeg"
	"image/png"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/klippa-app/go-pdfium"
	"github.com/klippa-app/go-pdfium/references"
	"github.com/klippa-app/go-pdfium/requests"
	"github.com/klippa-app/go-pdfium/webassembly"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	_ "golang.org/x/image/webp" // as above

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
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

// animatedWebP reports whether a WebP picture moves. The library decodes only pictures without
// animation.
func animatedWebP(data []byte) bool {
	const flags, animation = 20, 1 << 1
	return len(data) > flags && string(data[8:16]) == "WEBPVP8X" && data[flags]&animation != 0
}

// Bounds of reading a document: the memory of PDFium, in pages of 64 KiB, and the time for one. The
// time begins when PDFium is ready, since on a busy machine it may take long to compile it, or
// until other documents were read.
const (
	pdfMemory = 256 << 20 >> 16
	pdfTime   = 2 * time.Minute
)

// compiled has PDFium as machine code once a document was read: compiling takes seconds.
//
//nolint:gochecknoglobals // of the process
var compiled = sync.OnceValue(wazero.NewCompilationCache)

// PDFText returns the text of a PDF document, page by page. The error says why there is none: it is
// damaged or encrypted, its pages are pictures, or its text has more than so many bytes.
func PDFText(ctx context.Context, data []byte, most int) (text string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	select {
	case one <- struct{}{}:
		defer func() { <-one }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	defer func() { // as when the time is over
		if broke := recover(); broke != nil {
			text, err = "", errors.Join(fmt.Errorf("it cannot be read: %v", broke), context.Cause(ctx))
		}
	}()
	features := api.CoreFeaturesV2 | experimental.CoreFeaturesExceptionHandling
	pool, err := webassembly.Init(webassembly.Config{
		MaxIdle: 1, MaxTotal: 1, Context: ctx, FSConfig: wazero.NewFSConfig(), Stdout: io.Discard, Stderr: io.Discard,
		RuntimeConfig: wazero.NewRuntimeConfig().WithCoreFeatures(features).WithCompilationCache(compiled()).
			WithMemoryLimitPages(pdfMemory).WithCloseOnContextDone(true),
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = pool.Close() }()
	instance, err := pool.GetInstanceWithContext(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = instance.Close() }()
	defer time.AfterFunc(pdfTime, func() { cancel(context.DeadlineExceeded) }).Stop()
	document, err := instance.OpenDocument(&requests.OpenDocument{File: &data})
	if err != nil {
		return "", fmt.Errorf("it cannot be read: %w", err)
	}
	return pagesOf(ctx, instance, document.Document, most)
}

func pagesOf(ctx context.Context, instance pdfium.Pdfium, document references.FPDF_DOCUMENT, most int) (string, error) {
	count, err := instance.FPDF_GetPageCount(&requests.FPDF_GetPageCount{Document: document})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	empty := true
	for i := range count.PageCount {
		page, err := instance.GetPageText(&requests.GetPageText{Page: requests.Page{ByIndex: &requests.PageByIndex{Document: document, Index: i}}})
		if err = errors.Join(err, context.Cause(ctx)); err != nil {
			return "", fmt.Errorf("page %d: %w", i+1, err)
		}
		said := strings.TrimSpace(strings.ReplaceAll(prose.Valid(page.Text), "\r\n", "\n"))
		empty = empty && said == ""
		fmt.Fprintf(&text, "[Page %d of %d]\n%s\n\n", i+1, count.PageCount, said)
		if text.Len() > most {
			return "", fmt.Errorf("it has more than %d bytes of text", most)
		}
	}
	if empty {
		return "", errors.New("it has no text: its pages are pictures")
	}
	return strings.TrimSpace(text.String()), nil
}
