// A small CSI driver for tests: volumes are folders of a node, and snapshots are archives on an HTTP
// server outside of the cluster. It registers itself, and serves one node.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	driver         = "files.capelin.test"
	registry       = "/var/lib/kubelet/plugins_registry"
	requestTimeout = 5 * time.Second
	// The size of a small volume and of its snapshots, as storage rounds sizes up.
	minimum = 1 << 30
)

type server struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	socket, volumes, archives, node string
}

func main() {
	s := &server{}
	flag.StringVar(&s.socket, "socket", "", "path of the driver's socket")
	flag.StringVar(&s.volumes, "volumes", "", "folder of the volumes")
	flag.StringVar(&s.archives, "archives", "", "URL of the snapshots")
	flag.StringVar(&s.node, "node", "", "name of the node")
	flag.Parse()
	go serve(filepath.Join(registry, driver+".sock"), func(g *grpc.Server) {
		registration.RegisterRegistrationServer(g, s)
	})
	serve(s.socket, func(g *grpc.Server) {
		csi.RegisterIdentityServer(g, s)
		csi.RegisterControllerServer(g, s)
		csi.RegisterNodeServer(g, s)
	})
}

func serve(socket string, register func(*grpc.Server)) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(logErrors))
	register(g)
	log.Fatal(g.Serve(listener))
}

func logErrors(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, request)
	if err != nil {
		log.Printf("%s: %v", info.FullMethod, err)
	}
	return answer, err
}

// The registration with the kubelet.

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: driver, Endpoint: s.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (s *server) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !r.PluginRegistered {
		log.Printf("the kubelet did not register the driver: %s", r.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// Identity.

func (s *server) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: driver, VendorVersion: "1.0.0"}, nil
}

func (s *server) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	capability := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: service}}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{capability}}, nil
}

func (s *server) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// Volumes and snapshots.

func (s *server) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, each := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
	} {
		rpc := &csi.ControllerServiceCapability_RPC{Type: each}
		capability := &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}
		response.Capabilities = append(response.Capabilities, capability)
	}
	return response, nil
}

func (s *server) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	confirmed := &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.VolumeCapabilities}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: confirmed}, nil
}

func (s *server) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	folder, err := s.folder(r.Name)
	if err != nil {
		return nil, err
	}
	snapshot := r.GetVolumeContentSource().GetSnapshot().GetSnapshotId()
	if _, err := os.Stat(folder); err != nil {
		if err := s.fill(ctx, folder, snapshot); err != nil {
			return nil, unavailable(err)
		}
	}
	size := max(minimum, r.GetCapacityRange().GetRequiredBytes())
	volume := &csi.Volume{VolumeId: r.Name, CapacityBytes: size, ContentSource: r.VolumeContentSource}
	return &csi.CreateVolumeResponse{Volume: volume}, nil
}

func (s *server) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	folder, err := s.folder(r.VolumeId)
	if err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, os.RemoveAll(folder)
}

func (s *server) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	folder, err := s.folder(r.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	if err := s.upload(ctx, folder, r.Name); err != nil {
		return nil, unavailable(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: r.Name, SourceVolumeId: r.SourceVolumeId, SizeBytes: minimum,
		CreationTime: timestamppb.Now(), ReadyToUse: true,
	}}, nil
}

func (s *server) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	body, err := s.request(ctx, http.MethodGet, r.SnapshotId, nil)
	if err != nil {
		return nil, unavailable(err)
	}
	snapshot := &csi.Snapshot{
		SnapshotId: r.SnapshotId, SizeBytes: minimum, CreationTime: timestamppb.Now(), ReadyToUse: true,
	}
	entries := []*csi.ListSnapshotsResponse_Entry{{Snapshot: snapshot}}
	return &csi.ListSnapshotsResponse{Entries: entries}, body.Close()
}

// The node.

func (s *server) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.node}, nil
}

func (s *server) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (s *server) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	folder, err := s.folder(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := unmount(r.TargetPath); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.TargetPath, 0o750); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, syscall.Mount(folder, r.TargetPath, "", syscall.MS_BIND, "")
}

func (s *server) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unmount(r.TargetPath); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.TargetPath)
}

// unmount accepts paths that are not mounted, since the kubelet repeats its calls.
func unmount(path string) error {
	err := syscall.Unmount(path, 0)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return err
}

func (s *server) folder(volume string) (string, error) {
	if volume == "" || strings.ContainsAny(volume, "/.") {
		return "", status.Errorf(codes.InvalidArgument, "not a volume: %q", volume)
	}
	return filepath.Join(s.volumes, volume), nil
}

// fill creates the folder of a volume, with the content of a snapshot if it has one.
func (s *server) fill(ctx context.Context, folder, snapshot string) error {
	partial := folder + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(partial, 0o777), os.Chmod(partial, 0o777)); err != nil {
		return err
	}
	if snapshot != "" {
		body, err := s.request(ctx, http.MethodGet, snapshot, nil)
		if err != nil {
			return err
		}
		defer body.Close()
		if err := unpack(tar.NewReader(body), partial); err != nil {
			return err
		}
	}
	return os.Rename(partial, folder)
}

func unpack(archive *tar.Reader, folder string) error {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(folder, filepath.Clean("/"+header.Name))
		if header.FileInfo().IsDir() {
			err = os.MkdirAll(path, header.FileInfo().Mode())
		} else {
			err = write(path, header.FileInfo().Mode(), archive)
		}
		if err != nil {
			return err
		}
	}
}

func write(path string, mode fs.FileMode, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// upload sends the archive of a folder.
func (s *server) upload(ctx context.Context, folder, snapshot string) error {
	content := &bytes.Buffer{}
	archive := tar.NewWriter(content)
	if err := errors.Join(archive.AddFS(os.DirFS(folder)), archive.Close()); err != nil {
		return err
	}
	body, err := s.request(ctx, http.MethodPut, snapshot, content)
	if err != nil {
		return err
	}
	return body.Close()
}

func (s *server) request(ctx context.Context, method, snapshot string, body io.Reader) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.archives+"/"+snapshot, body)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: requestTimeout}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		return nil, errors.Join(fmt.Errorf("%s %s: %s", method, request.URL, answer.Status), answer.Body.Close())
	}
	return answer.Body, nil
}

func unavailable(err error) error {
	return status.Error(codes.Unavailable, err.Error())
}
