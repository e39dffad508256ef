# orders.py
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import fairlead

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
ENGINE_URL = os.environ.get("SHOP_ENGINE_URL", "sqlite+aiosqlite:///shop.db?timeout=30")
# the same database on PostgreSQL: postgresql://db/shop and postgresql+psycopg://db/shop

tasks = fairlead.App(URL)
engine = create_async_engine(ENGINE_URL)
Sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    confirmed: Mapped[int] = mapped_column(default=0)


@tasks.task
async def confirm(order: int) -> None:
    async with Sessions.begin() as session:
        found = await session.get_one(Order, order)
        found.confirmed += 1


async def get_session() -> AsyncIterator[AsyncSession]:
    async with Sessions.begin() as session:  # commits, or rolls back after an error
        yield session


@asynccontextmanager
async def tables(site: object) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()
