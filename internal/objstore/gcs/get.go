package gcs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/leveemq/levee/internal/objstore"
)

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, n int64) (*objstore.Body, error) {
	if err := objstore.CheckRange(key, off); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, objstore.Ended(ctx, objstore.OpGet, key)
	}
	if n == 0 { // which a range cannot say
		return objstore.Nothing(ctx, s, key, off)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.object(key)+"?alt=media", nil)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w: %w", key, objstore.ErrInvalid, err)
	}
	wanted := http.StatusOK
	asked := objstore.RangeHeader(off, n)
	if asked != "" {
		req.Header.Set("Range", asked)
		wanted = http.StatusPartialContent
	}
	res, err := s.do(req, wanted)
	if err != nil {
		err = failure(objstore.OpGet, key, false, err)
		if errors.Is(err, objstore.ErrRange) {
			return objstore.Nothing(ctx, s, key, off)
		}
		return nil, err
	}
	info, length := mediaInfo(key, res), res.ContentLength
	info.Size = length
	if asked != "" {
		length, info.Size, err = objstore.ContentRange(res.Header.Get("Content-Range"), off, n)
	} else if length < 0 {
		err = errors.New("the answer does not say how long it is")
	}
	if err != nil {
		_ = res.Body.Close() // of an answer that is of no use
		return nil, failure(objstore.OpGet, key, false, err)
	}
	return objstore.NewBody(ctx, info, off, length, res.Body), nil
}

// mediaInfo reads what the headers of a download say of the object.
func mediaInfo(key string, res *http.Response) objstore.Info {
	info := objstore.Info{Key: key, Version: objstore.Version(res.Header.Get("X-Goog-Generation"))}
	for _, line := range res.Header.Values("X-Goog-Hash") {
		for part := range strings.SplitSeq(line, ",") {
			if sum, ok := strings.CutPrefix(strings.TrimSpace(part), "crc32c="); ok {
				info.CRC32C, info.HasCRC = decodeSum(sum)
			}
		}
	}
	if at, err := http.ParseTime(res.Header.Get("Last-Modified")); err == nil {
		info.Modified = at
	}
	return info
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	if ctx.Err() != nil {
		return objstore.Info{}, objstore.Ended(ctx, objstore.OpHead, key)
	}
	var r resource
	if err := s.ask(ctx, s.object(key), &r); err != nil {
		return objstore.Info{}, failure(objstore.OpHead, key, false, err)
	}
	info, err := r.info()
	if err != nil {
		return objstore.Info{}, failure(objstore.OpHead, key, false, err)
	}
	info.Key = key
	return info, nil
}

// ask gets an answer in JSON.
func (s *Store) ask(ctx context.Context, address string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	res, err := s.do(req, http.StatusOK)
	if err != nil {
		return err
	}
	return decode(res, into)
}

// pageSize is how many names are asked for at once.
const pageSize = 1000

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := objstore.CheckPrefix(prefix); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		q := url.Values{
			"prefix": {prefix}, "maxResults": {strconv.Itoa(pageSize)},
			"fields": {"nextPageToken,items(name,size,generation,crc32c,updated)"},
		}
		if after != "" {
			q.Set("startOffset", after) // which includes it
		}
		for {
			if ctx.Err() != nil {
				yield(objstore.Info{}, objstore.Ended(ctx, objstore.OpList, prefix))
				return
			}
			var page struct {
				NextPageToken string
				Items         []resource
			}
			if err := s.ask(ctx, s.base+"/storage/v1/b/"+url.PathEscape(s.bucket)+"/o?"+q.Encode(), &page); err != nil {
				yield(objstore.Info{}, failure(objstore.OpList, prefix, false, err))
				return
			}
			for _, r := range page.Items {
				if r.Name <= after || strings.HasSuffix(r.Name, "/") { // or a folder that somebody made to look at
					continue
				}
				info, err := r.info()
				if err != nil {
					yield(objstore.Info{}, failure(objstore.OpList, prefix, false, err))
					return
				}
				if !yield(info, nil) {
					return
				}
			}
			if page.NextPageToken == "" {
				return
			}
			q.Set("pageToken", page.NextPageToken)
		}
	}
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return objstore.Ended(ctx, objstore.OpDelete, key)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, s.object(key), nil)
	if err != nil {
		return fmt.Errorf("delete %s: %w: %w", key, objstore.ErrInvalid, err)
	}
	res, err := s.do(req, http.StatusNoContent, http.StatusOK)
	if err == nil {
		return res.Body.Close()
	}
	if err = failure(objstore.OpDelete, key, true, err); errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	return err
}
