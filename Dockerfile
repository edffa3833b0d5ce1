# syntax=docker/dockerfile:1
# Builds two images: `--target worker` (pcaplake run, setup, doctor, ...) and `--target spark` (the Spark jobs).
#
#     make images            # both images, for this machine's processor architecture
#
# The wheel has the compiled kernels, for all processors of an architecture. The root file system may be read-only; /tmp must be
# writable.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# -- common to build time and run time --------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
ENV PATH=/app/venv/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

# -- packages ---------------------------------------------------------------------------------------------------------
FROM base AS wheel
WORKDIR /src
COPY deploy/docker/needed.py requirements.lock pyproject.toml ./
RUN python needed.py --only setuptools cython dpkt numpy pyarrow zstandard ziglang > build.txt \
    && pip install --no-cache-dir --require-hashes -r build.txt
COPY README.md LICENSE setup.py MANIFEST.in ./
COPY tools/__init__.py tools/
COPY tools/kernels tools/kernels
COPY core core
COPY src src
COPY docs docs
COPY parser parser
COPY signals signals
COPY common common
COPY lake lake
COPY ingest ingest
COPY derived derived
COPY worker worker
COPY spark_jobs spark_jobs
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM base AS worker-packages
WORKDIR /src
COPY deploy/docker/needed.py requirements.lock pyproject.toml ./
RUN python needed.py aws otel cluster signals > worker.txt \
    && python -m venv /app/venv \
    && pip install --no-cache-dir --require-hashes -r worker.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl

FROM worker-packages AS spark-packages
RUN python needed.py aws otel cluster spark > spark.txt \
    && pip install --no-cache-dir --require-hashes -r spark.txt

FROM spark-packages AS jars
# hadolint ignore=DL3008
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install -y --no-install-recommends maven openjdk-17-jdk-headless \
    && rm -rf /var/lib/apt/lists/* \
    && python -m pcaplake.spark_jobs.jars /app/jars

# -- run time ---------------------------------------------------------------------------------------------------------
FROM base AS runtime
# The user has a name, because Hadoop, and therefore Spark, does not start as a user without one.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates tini \
    && rm -rf /var/lib/apt/lists/* \
    && echo "pcaplake:x:10001:10001::/tmp:/usr/sbin/nologin" >> /etc/passwd
COPY --chmod=755 deploy/docker/start /app/start
WORKDIR /tmp
# tini runs as process 1: it forwards signals, and a signal takes effect even before Python has installed a handler.
ENTRYPOINT ["tini", "--", "/app/start"]

FROM runtime AS spark
# hadolint ignore=DL3008
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
ENV SPARK_HOME=/app/venv/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/app/venv/bin/python \
    PCAPLAKE_SPARK_JARS=/app/jars
COPY --from=spark-packages /app/venv /app/venv
COPY --from=jars /app/jars /app/jars
RUN ln -s /app/jars/*.jar "$SPARK_HOME/jars/"
COPY --chmod=755 deploy/docker/spark-on-kubernetes /app/spark-on-kubernetes
COPY deploy/docker/job.py /app/job.py
USER 10001:10001
CMD ["spark-submit", "/app/job.py", "--help"]

FROM runtime AS worker
COPY --from=worker-packages /app/venv /app/venv
USER 10001:10001
EXPOSE 9464
CMD ["pcaplake", "--help"]
