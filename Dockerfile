# Compiles for the platform that is asked for, on the one that builds.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
# Modules change seldom: their layer is built once.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# A checkout whose .git leads elsewhere (a worktree) needs
# --build-arg GOFLAGS=-buildvcs=false.
ARG GOFLAGS=
ARG TARGETOS TARGETARCH
ENV GOOS=$TARGETOS GOARCH=$TARGETARCH
# grpcnotrace leaves out pages about calls that nothing serves, and the template
# engines for them: 2.7 MB.
RUN CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags="-s -w" -o /out/wopproxy ./cmd/wopproxy
RUN mkdir -p /out/store

# No shell, no libc, no package manager: the program and the public CA roots.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/wopproxy /usr/bin/wopproxy
# A new volume mounted here takes over the owner, so that the program may write.
COPY --from=build --chown=65532:65532 /out/store /var/lib/wopproxy
LABEL org.opencontainers.image.title="wopproxy" \
      org.opencontainers.image.description="A sidecar that makes causation survive the boundary between agent hosts" \
      org.opencontainers.image.source="https://github.com/wopproxy/wopproxy" \
      org.opencontainers.image.documentation="https://github.com/wopproxy/wopproxy/blob/main/deploy/README.md" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
# ingress, egress, admin. Egress is for the host beside it: publish it nowhere.
EXPOSE 8088 8089 9090
ENTRYPOINT ["/usr/bin/wopproxy"]
CMD ["serve", "-config", "/etc/wopproxy/wopproxy.yaml"]
