# Two images: `train` has every verb, `serve` answers over HTTP. Written without a Docker daemon at hand: neither was
# ever built (docs/decisions/017-containers.md says what is checked instead).
#
#   docker build --target serve --build-arg TORCH_INDEX=URL --tag bertsmith:serve .
#   docker build --target train --build-arg TORCH_INDEX=URL --tag bertsmith:train .
#
# URL is PyTorch's index of CPU wheels, or that of your CUDA, as its installation page names it.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS torch
ARG TORCH="torch>=2.11,<2.14"
ARG TORCH_INDEX
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 bertsmith && install --directory --owner bertsmith /data
WORKDIR /build
COPY constraints.txt ./
# First, capped and in a layer of its own, so that a change of the source does not fetch it again.
RUN test -n "$TORCH_INDEX" || { \
      echo "name an index of PyTorch's wheels: --build-arg TORCH_INDEX=URL (without one, a server for CPUs gets several GB for CUDA)" >&2; \
      exit 2; \
    } \
 && pip install --constraint constraints.txt --extra-index-url "$TORCH_INDEX" "$TORCH" hatchling \
 && python -c "import torch; print(f'torch {torch.__version__}, CUDA {torch.version.cuda}')"
COPY pyproject.toml README.md LICENSE ./
COPY src src

FROM torch AS train
ARG EXTRAS=fast,plots,tensorboard,parquet,near,zstd,ray,onnx
# A C++ compiler: on CPUs a run compiles its kernels when it starts, on GPUs torch.compile does.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --constraint constraints.txt --no-build-isolation ".[$EXTRAS]"
ENV RAY_USAGE_STATS_ENABLED=0
USER 1000
WORKDIR /data
ENTRYPOINT ["bertsmith"]
CMD ["--help"]

FROM torch AS serve
ARG EXTRAS=serve
RUN pip install --constraint constraints.txt --no-build-isolation ".[$EXTRAS]"
USER 1000
WORKDIR /data
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["bertsmith", "serve", "--host", "0.0.0.0", "--port", "8080"]
