package azure

import (
	"context"
	"errors"
	"iter"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
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
	whole := objstore.RangeHeader(off, n) == ""
	opts := &blob.DownloadStreamOptions{}
	if !whole {
		opts.Range = blob.HTTPRange{Offset: off, Count: max(n, 0)} // 0: to the end
	}
	res, err := s.client.NewBlobClient(key).DownloadStream(ctx, opts)
	if err != nil {
		err = failure(objstore.OpGet, key, false, err)
		if errors.Is(err, objstore.ErrRange) {
			return objstore.Nothing(ctx, s, key, off)
		}
		return nil, err
	}
	info, err := infoOf(key, res.ContentLength, res.ETag, res.LastModified, res.Metadata)
	length := info.Size
	if err == nil && !whole {
		var header string
		if res.ContentRange != nil {
			header = *res.ContentRange
		}
		length, info.Size, err = objstore.ContentRange(header, off, n)
	}
	if err != nil {
		_ = res.Body.Close() // of an answer that is of no use
		return nil, failure(objstore.OpGet, key, false, err)
	}
	return objstore.NewBody(ctx, info, off, length, res.Body), nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	if ctx.Err() != nil {
		return objstore.Info{}, objstore.Ended(ctx, objstore.OpHead, key)
	}
	res, err := s.client.NewBlobClient(key).GetProperties(ctx, nil)
	if err != nil {
		return objstore.Info{}, failure(objstore.OpHead, key, false, err)
	}
	info, err := infoOf(key, res.ContentLength, res.ETag, res.LastModified, res.Metadata)
	if err != nil {
		return objstore.Info{}, failure(objstore.OpHead, key, false, err)
	}
	return info, nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		if err := objstore.CheckPrefix(prefix); err != nil {
			yield(objstore.Info{}, err)
			return
		}
		opts := &container.ListBlobsFlatOptions{
			Include:        container.ListBlobsInclude{Metadata: true},
			ResponseFormat: container.StorageResponseFormatXML,
		}
		if prefix != "" {
			opts.Prefix = &prefix
		}
		if after != "" {
			opts.StartFrom = &after // which includes it
		}
		pager := s.client.NewListBlobsFlatPager(opts)
		for pager.More() {
			if ctx.Err() != nil {
				yield(objstore.Info{}, objstore.Ended(ctx, objstore.OpList, prefix))
				return
			}
			page, err := pager.NextPage(ctx)
			if err != nil {
				yield(objstore.Info{}, failure(objstore.OpList, prefix, false, err))
				return
			}
			if page.Segment == nil {
				continue
			}
			for _, item := range page.Segment.BlobItems {
				if item.Name == nil || item.Properties == nil || *item.Name <= after || strings.HasSuffix(*item.Name, "/") {
					continue
				}
				p := item.Properties
				info, err := infoOf(*item.Name, p.ContentLength, p.ETag, p.LastModified, item.Metadata)
				if err != nil {
					yield(objstore.Info{}, failure(objstore.OpList, prefix, false, err))
					return
				}
				if !yield(info, nil) {
					return
				}
			}
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
	_, err := s.client.NewBlobClient(key).Delete(ctx, nil)
	if err == nil {
		return nil
	}
	if err = failure(objstore.OpDelete, key, true, err); errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	return err
}
